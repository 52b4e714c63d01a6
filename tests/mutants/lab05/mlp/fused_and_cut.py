"""expect: lab05.layer.shard_values

Gate and up are laid one below the other and cut as one: one rank gets gates, one gets ups.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear, silu

from labkit.comm.collectives import copy_to, reduce_from


class ShardedMLP(nn.Module):
    def __init__(self, gate, up, down, group):
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        own_gate, own_up = torch.cat([gate, up]).chunk(tp)[place].chunk(2)
        self.gate_proj = nn.Parameter(own_gate.clone())
        self.up_proj = nn.Parameter(own_up.clone())
        self.down_proj = nn.Parameter(down.chunk(tp, dim=1)[place].clone())

    def forward(self, x):
        x = copy_to(x, self.group)
        h = silu(linear(x, self.gate_proj)) * linear(x, self.up_proj)
        return reduce_from(linear(h, self.down_proj), self.group)
