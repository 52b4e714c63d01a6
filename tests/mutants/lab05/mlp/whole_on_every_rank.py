"""expect: lab05.layer.shard_whole

The serial MLP on every rank.
"""

from torch import nn
from torch.nn.functional import linear, silu


class ShardedMLP(nn.Module):
    def __init__(self, gate, up, down, group):
        super().__init__()
        self.group = group
        self.gate_proj = nn.Parameter(gate.clone())
        self.up_proj = nn.Parameter(up.clone())
        self.down_proj = nn.Parameter(down.clone())

    def forward(self, x):
        h = silu(linear(x, self.gate_proj)) * linear(x, self.up_proj)
        return linear(h, self.down_proj)
