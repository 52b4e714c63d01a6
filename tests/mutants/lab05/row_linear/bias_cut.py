"""expect: lab05.row_linear.bias_shard

A part of the bias on each rank; the output takes all of it.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear

from labkit.comm.collectives import gather_from, reduce_from


class RowLinear(nn.Module):
    def __init__(self, weight, bias, group):
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        self.weight = nn.Parameter(weight.chunk(tp, dim=1)[place].clone())
        self.bias = None if bias is None else nn.Parameter(bias.chunk(tp)[place].clone())

    def forward(self, x):
        y = reduce_from(linear(x, self.weight), self.group)
        return y if self.bias is None else y + gather_from(self.bias, self.group)
