"""expect: lab07.route.loss

Load times load: both factors are counts.
"""


def route(logits, bias, k):
    T, E = logits.shape
    scores = logits.softmax(-1)
    indices = (scores + bias).topk(k, -1).indices
    chosen = scores.gather(-1, indices)
    weights = chosen / chosen.sum(-1, keepdim=True)
    load = indices.flatten().bincount(minlength=E) / (k * T)
    loss = E * (load.to(scores.dtype) * load.to(scores.dtype)).sum()
    return indices, weights, loss
