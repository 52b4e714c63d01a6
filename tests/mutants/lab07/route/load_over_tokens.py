"""expect: lab07.route.loss_choices

Load is divided by the tokens, not by the choices.
"""


def route(logits, bias, k):
    T, E = logits.shape
    scores = logits.softmax(-1)
    indices = (scores + bias).topk(k, -1).indices
    chosen = scores.gather(-1, indices)
    weights = chosen / chosen.sum(-1, keepdim=True)
    load = indices.flatten().bincount(minlength=E) / T
    loss = E * (load.to(scores.dtype) * scores.mean(0)).sum()
    return indices, weights, loss
