"""expect: lab05.layer.shard_dim

Q, K and V are cut along their input, as the output's product is, and summed at once.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear

from labkit.comm.collectives import reduce_from, scatter_to
from labkit.model.attention import causal_attention


class ShardedAttention(nn.Module):
    def __init__(self, q, k, v, o, head_dim, group, replicas):
        super().__init__()
        self.head_dim, self.group, self.replicas = head_dim, group, replicas
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        self.q_proj = nn.Parameter(q.chunk(tp, dim=1)[place].clone())
        self.k_proj = nn.Parameter(k.chunk(tp, dim=1)[place].clone())
        self.v_proj = nn.Parameter(v.chunk(tp, dim=1)[place].clone())
        self.o_proj = nn.Parameter(o.chunk(tp, dim=1)[place].clone())

    def heads(self, x, weight):
        y = reduce_from(linear(x, weight), self.group)
        return y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        x = scatter_to(x, self.group)
        q = self.heads(x, self.q_proj)
        k = self.heads(x, self.k_proj)
        v = self.heads(x, self.v_proj)
        mixed = causal_attention(q, k, v).transpose(1, 2).flatten(2)
        return reduce_from(linear(scatter_to(mixed, self.group), self.o_proj), self.group)
