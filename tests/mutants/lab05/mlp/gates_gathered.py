"""expect: lab05.mlp.gathered

Gate and up are gathered, as if silu needed all of them.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear, silu

from labkit.comm.collectives import copy_to, gather_from, reduce_from, scatter_to


class ShardedMLP(nn.Module):
    def __init__(self, gate, up, down, group):
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        self.gate_proj = nn.Parameter(gate.chunk(tp)[place].clone())
        self.up_proj = nn.Parameter(up.chunk(tp)[place].clone())
        self.down_proj = nn.Parameter(down.chunk(tp, dim=1)[place].clone())

    def forward(self, x):
        x = copy_to(x, self.group)
        gate = gather_from(linear(x, self.gate_proj), self.group)
        up = gather_from(linear(x, self.up_proj), self.group)
        h = scatter_to(silu(gate) * up, self.group)
        return reduce_from(linear(h, self.down_proj), self.group)
