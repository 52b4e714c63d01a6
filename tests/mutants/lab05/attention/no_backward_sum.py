"""expect: lab05.layer.input_grad_part

x does not enter through copy_to.
"""

import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear

from labkit.comm.collectives import copy_to, reduce_from
from labkit.model.attention import causal_attention


class ShardedAttention(nn.Module):
    def __init__(self, q, k, v, o, head_dim, group, replicas):
        super().__init__()
        self.head_dim, self.group, self.replicas = head_dim, group, replicas
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        pieces = min(tp, len(k) // head_dim)
        self.q_proj = nn.Parameter(q.chunk(tp)[place].clone())
        self.k_proj = nn.Parameter(k.chunk(pieces)[place * pieces // tp].clone())
        self.v_proj = nn.Parameter(v.chunk(pieces)[place * pieces // tp].clone())
        self.o_proj = nn.Parameter(o.chunk(tp, dim=1)[place].clone())

    def heads(self, x, weight):
        return linear(x, weight).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        q = self.heads(x, self.q_proj)
        k = self.heads(x, copy_to(self.k_proj, self.replicas))
        v = self.heads(x, copy_to(self.v_proj, self.replicas))
        mixed = causal_attention(q, k, v).transpose(1, 2).flatten(2)
        return reduce_from(linear(mixed, self.o_proj), self.group)
