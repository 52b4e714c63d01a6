"""Bounds worked out by hand."""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear

from labkit.comm.collectives import copy_to


class ColumnLinear(nn.Module):
    def __init__(self, weight, bias, group):
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        size = len(weight) // tp
        self.weight = nn.Parameter(weight.narrow(0, place * size, size).clone())
        self.bias = None if bias is None else nn.Parameter(bias.chunk(tp)[place].clone())

    def forward(self, x):
        return linear(copy_to(x, self.group), self.weight, self.bias)
