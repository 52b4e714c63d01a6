"""With a mask of the chosen experts."""

import torch


def route(logits, bias, k):
    E = logits.shape[1]
    scores = logits.softmax(-1)
    indices = (scores + bias).topk(k, -1).indices
    chosen = scores.gather(-1, indices)
    weights = chosen / chosen.sum(-1, keepdim=True)
    mask = torch.zeros_like(scores).scatter(-1, indices, 1.0)
    load = mask.sum(0) / mask.sum()
    loss = E * (load.to(scores.dtype) * scores.mean(0)).sum()
    return indices, weights, loss
