"""expect: lab07.kept.over

One place too many: places count from 0.
"""

import torch


def kept(indices, num_experts, capacity):
    in_order = indices.T.flatten()
    chosen = torch.nn.functional.one_hot(in_order, num_experts)
    place = (chosen.cumsum(0) * chosen).sum(1) - 1
    return (place <= capacity).view(indices.T.shape).T
