"""expect: lab05.mlp.reduced_twice

One copy_to for gate, one for up.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear, silu

from labkit.comm.collectives import copy_to, reduce_from


class ShardedMLP(nn.Module):
    def __init__(self, gate, up, down, group):
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        self.gate_proj = nn.Parameter(gate.chunk(tp)[place].clone())
        self.up_proj = nn.Parameter(up.chunk(tp)[place].clone())
        self.down_proj = nn.Parameter(down.chunk(tp, dim=1)[place].clone())

    def forward(self, x):
        gate = linear(copy_to(x, self.group), self.gate_proj)
        up = linear(copy_to(x, self.group), self.up_proj)
        h = silu(gate) * up
        return reduce_from(linear(h, self.down_proj), self.group)
