"""expect: lab07.route.shape

Weights of all experts are returned, zeros among them.
"""

import torch


def route(logits, bias, k):
    T, E = logits.shape
    scores = logits.softmax(-1)
    indices = (scores + bias).topk(k, -1).indices
    chosen = scores.gather(-1, indices)
    weights = chosen / chosen.sum(-1, keepdim=True)
    load = indices.flatten().bincount(minlength=E) / (k * T)
    loss = E * (load.to(scores.dtype) * scores.mean(0)).sum()
    weights = torch.zeros_like(scores).scatter(-1, indices, weights)
    return indices, weights, loss
