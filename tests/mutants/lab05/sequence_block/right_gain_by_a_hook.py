"""The gain's gradient is summed by a hook."""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear, rms_norm, silu

from labkit.comm.collectives import all_gather, reduce_scatter


class SequenceBlock(nn.Module):
    def __init__(self, gain, gate, up, down, group):
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        self.gain = nn.Parameter(gain.clone())
        self.gain.register_hook(self.summed)
        self.gate_proj = nn.Parameter(gate.chunk(tp)[place].clone())
        self.up_proj = nn.Parameter(up.chunk(tp)[place].clone())
        self.down_proj = nn.Parameter(down.chunk(tp, dim=1)[place].clone())

    def summed(self, grad):
        total = grad.clone()
        dist.all_reduce(total, group=self.group)
        return total

    def forward(self, x):
        gain = self.gain
        h = all_gather(rms_norm(x, gain.shape, gain, 1e-6), self.group, dim=1)
        h = silu(linear(h, self.gate_proj)) * linear(h, self.up_proj)
        return x + reduce_scatter(linear(h, self.down_proj), self.group, dim=1)
