"""A grid of ranks, its dimensions turned."""

import torch


def mesh_groups(sizes, axes):
    names = list(sizes)
    grid = torch.arange(torch.Size(sizes.values()).numel()).view(*sizes.values())
    inside = [names.index(axis) for axis in sorted(axes, key=names.index)]
    outside = [dim for dim in range(len(names)) if dim not in inside]
    size = torch.Size(sizes[names[dim]] for dim in inside).numel()
    return grid.permute(*outside, *inside).reshape(-1, size).tolist()
