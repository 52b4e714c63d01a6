"""Softmax over the chosen logits is the same as dividing by their sum."""


def route(logits, bias, k):
    T, E = logits.shape
    scores = logits.softmax(-1)
    indices = (scores + bias).topk(k, -1).indices
    weights = logits.gather(-1, indices).softmax(-1)
    load = indices.flatten().bincount(minlength=E) / (k * T)
    loss = E * (load.to(scores.dtype) * scores.mean(0)).sum()
    return indices, weights, loss
