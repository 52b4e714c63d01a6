"""The gradients of K and V are summed by hooks; weights in layers."""

import torch.distributed as dist
from torch import nn

from labkit.comm.collectives import copy_to, reduce_from
from labkit.model.attention import causal_attention


def layer(weight):
    made = nn.Linear(*weight.shape[::-1], bias=False, dtype=weight.dtype)
    made.weight = nn.Parameter(weight.clone())
    return made


class ShardedAttention(nn.Module):
    def __init__(self, q, k, v, o, head_dim, group, replicas):
        super().__init__()
        self.head_dim, self.group, self.replicas = head_dim, group, replicas
        place, tp = dist.get_rank(group), dist.get_world_size(group)
        per_rank = len(q) // head_dim // tp
        times = len(q) // len(k)
        first, last = place * per_rank // times, ((place + 1) * per_rank - 1) // times
        own = slice(first * head_dim, (last + 1) * head_dim)
        self.q_proj, self.o_proj = layer(q.chunk(tp)[place]), layer(o.chunk(tp, 1)[place])
        self.k_proj, self.v_proj = layer(k[own]), layer(v[own])
        for shared in (self.k_proj, self.v_proj):
            shared.weight.register_hook(self.summed)

    def summed(self, grad):
        total = grad.clone()
        dist.all_reduce(total, group=self.replicas)
        return total

    def forward(self, x):
        x = copy_to(x, self.group)
        q, k, v = (
            project(x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = causal_attention(q, k, v).transpose(1, 2).flatten(2)
        return reduce_from(self.o_proj(mixed), self.group)
