"""expect: lab07.route.bias_in_weights

The bias is in the weights too.
"""


def route(logits, bias, k):
    T, E = logits.shape
    scores = logits.softmax(-1)
    shifted = scores + bias
    indices = shifted.topk(k, -1).indices
    chosen = shifted.gather(-1, indices)
    weights = chosen / chosen.sum(-1, keepdim=True)
    load = indices.flatten().bincount(minlength=E) / (k * T)
    loss = E * (load.to(scores.dtype) * scores.mean(0)).sum()
    return indices, weights, loss
