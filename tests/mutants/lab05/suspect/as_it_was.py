"""expect: lab05.suspect.drift

The suspect of the bug hunt: the norm is inside the region, so the gain gets a part of its gradient.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear, rms_norm, silu

from labkit.comm import collectives


class Suspect(nn.Module):
    """x + MLP(norm(x)). Parameters: gain [D], whole on every rank, and the shards of the MLP."""

    def __init__(self, gain, gate, up, down, group):
        """gain [D], gate [F, D], up [F, D] and down [D, F] of the whole block."""
        super().__init__()
        self.group = group
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        self.gain = nn.Parameter(gain.clone())
        self.gate_proj = nn.Parameter(gate.chunk(tp)[place].clone())
        self.up_proj = nn.Parameter(up.chunk(tp)[place].clone())
        self.down_proj = nn.Parameter(down.chunk(tp, dim=1)[place].clone())

    def forward(self, x):
        """x [B, T, D], the same on every rank; returns [B, T, D], the same on every rank."""
        h = collectives.copy_to(x, self.group)
        h = rms_norm(h, self.gain.shape, self.gain, 1e-6)
        h = silu(linear(h, self.gate_proj)) * linear(h, self.up_proj)
        return x + collectives.reduce_from(linear(h, self.down_proj), self.group)
