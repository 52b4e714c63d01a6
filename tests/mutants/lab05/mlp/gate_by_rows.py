"""expect: lab05.layer.shard_dim

gate and up are cut along their input, and summed at once.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear, silu

from labkit.comm.collectives import reduce_from, scatter_to


class ShardedMLP(nn.Module):
    def __init__(self, gate, up, down, group):
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        self.gate_proj = nn.Parameter(gate.chunk(tp, dim=1)[place].clone())
        self.up_proj = nn.Parameter(up.chunk(tp, dim=1)[place].clone())
        self.down_proj = nn.Parameter(down.chunk(tp, dim=1)[place].clone())

    def forward(self, x):
        x = scatter_to(x, self.group)
        gate = reduce_from(linear(x, self.gate_proj), self.group)
        up = reduce_from(linear(x, self.up_proj), self.group)
        h = scatter_to(silu(gate) * up, self.group)
        return reduce_from(linear(h, self.down_proj), self.group)
