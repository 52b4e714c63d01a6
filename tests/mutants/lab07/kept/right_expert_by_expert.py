"""Each expert takes the first of its copies."""

import torch


def kept(indices, num_experts, capacity):
    columns = indices.T.flatten()
    mask = torch.zeros(len(columns), dtype=torch.bool)
    for expert in range(num_experts):
        mask[(columns == expert).nonzero()[:capacity, 0]] = True
    return mask.view(indices.T.shape).T
