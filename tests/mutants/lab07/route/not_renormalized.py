"""expect: lab07.route.not_shared

Weights are the scores as they are.
"""


def route(logits, bias, k):
    T, E = logits.shape
    scores = logits.softmax(-1)
    indices = (scores + bias).topk(k, -1).indices
    chosen = scores.gather(-1, indices)
    weights = chosen
    load = indices.flatten().bincount(minlength=E) / (k * T)
    loss = E * (load.to(scores.dtype) * scores.mean(0)).sum()
    return indices, weights, loss
