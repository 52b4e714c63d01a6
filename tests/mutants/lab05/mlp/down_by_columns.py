"""expect: lab05.layer.shard_dim

down is cut along its output; the hidden units are gathered for it.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear, silu

from labkit.comm.collectives import copy_to, gather_from


class ShardedMLP(nn.Module):
    def __init__(self, gate, up, down, group):
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        self.gate_proj = nn.Parameter(gate.chunk(tp)[place].clone())
        self.up_proj = nn.Parameter(up.chunk(tp)[place].clone())
        self.down_proj = nn.Parameter(down.chunk(tp)[place].clone())

    def forward(self, x):
        x = copy_to(x, self.group)
        h = silu(linear(x, self.gate_proj)) * linear(x, self.up_proj)
        h = gather_from(h, self.group)
        return gather_from(linear(h, self.down_proj), self.group)
