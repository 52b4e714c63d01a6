"""expect: lab07.route.loss

Probabilities are those of the choice, with the bias.
"""


def route(logits, bias, k):
    T, E = logits.shape
    scores = logits.softmax(-1)
    indices = (scores + bias).topk(k, -1).indices
    chosen = scores.gather(-1, indices)
    weights = chosen / chosen.sum(-1, keepdim=True)
    load = indices.flatten().bincount(minlength=E) / (k * T)
    loss = E * (load.to(scores.dtype) * (scores + bias).mean(0)).sum()
    return indices, weights, loss
