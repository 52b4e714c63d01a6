"""Column and row layers, entered once."""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear, silu

from labkit.comm.collectives import copy_to, reduce_from


class ColumnLinear(nn.Module):
    def __init__(self, weight, group):
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        self.weight = nn.Parameter(weight.chunk(tp)[place].clone())

    def forward(self, x):
        return linear(copy_to(x, self.group), self.weight)


class RowLinear(nn.Module):
    def __init__(self, weight, group):
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        self.weight = nn.Parameter(weight.chunk(tp, dim=1)[place].clone())

    def forward(self, x):
        return reduce_from(linear(x, self.weight), self.group)


class ShardedMLP(nn.Module):
    def __init__(self, gate, up, down, group):
        super().__init__()
        self.group = group
        self.gate_proj, self.up_proj = ColumnLinear(gate, group), ColumnLinear(up, group)
        self.down_proj = RowLinear(down, group)

    def forward(self, x):
        x = copy_to(x, self.group)
        gate, up = linear(x, self.gate_proj.weight), linear(x, self.up_proj.weight)
        return self.down_proj(silu(gate) * up)
