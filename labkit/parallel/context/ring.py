"""Ring attention: K and V travel round the ring, the queries stay where they are.

    step s of rank r    has K and V of rank r-s; attends to them while they go on to rank r+1
    backward            the same again; the sums of dK and dV follow K and V, and end at home

Every rank holds T/cp of the tokens, and at most two shards of K and V at any moment. For backward
it keeps q, k, v, out and lse of its own tokens. Its own part of dK and dV never leaves it, so the
sums make cp-1 hops, as K and V do: from rank r+1 all the way round to rank r.

Cost: S bytes of K and V a rank. Forward cp-1 messages, (cp-1) S bytes; backward twice as many of
both. A message hides behind 4 t^2 d FLOP a head if those take longer (t = T/cp).
Source: ring attention (arXiv 2310.01889), section 3.

Shapes: B batch, H heads, K KV heads, G = H/K heads that share one, T sequence, d head width.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from labkit.comm.ring import finish, start
from labkit.parallel.context.blocks import Attended, attend, gradients, nothing_yet
from labkit.parallel.context.placement import Layout, chunks_of
from labkit.parallel.context.shapes import check_shards, grouped


def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: dist.ProcessGroup,
    *,
    causal: bool = True,
    layout: Layout = "zigzag",
) -> torch.Tensor:
    """Attention of this rank's queries to the tokens of all ranks.

    Args:
        q: [B, H, T/cp, d], as `shard_sequence` places them.
        k, v: [B, K, T/cp, d]; K divides H.
        group: the ranks that share the sequence; its order is the ring's.
        causal: a token sees none after it.
        layout: which tokens are where; the same on every rank.

    Returns:
        [B, H, T/cp, d].

    Raises:
        ValueError: if the shapes do not fit, before anything is sent.
    """
    check_shards(q, k, v, group, layout)
    out = _Ring.apply(grouped(q, k), torch.stack([k, v]), group, causal, layout)
    return out.flatten(1, 2)  # [B, H, T/cp, d]


class _Ring(torch.autograd.Function):
    """q [B, K, G, T/cp, d], kv [2, B, K, T/cp, d]."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        kv: torch.Tensor,
        group: dist.ProcessGroup,
        causal: bool,
        layout: Layout,
    ) -> torch.Tensor:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        mine = chunks_of(rank, size, layout)
        result, held = nothing_yet(q), kv
        for step in range(size):
            exchange = start([held] if step < size - 1 else [], group)
            theirs = chunks_of((rank - step) % size, size, layout)
            result = attend(result, q, held, mine, theirs, causal)  # meanwhile
            if step < size - 1:
                (held,) = finish(exchange)
        out = result.out.to(q.dtype)
        ctx.save_for_backward(q, kv, out, result.lse)
        ctx.rest = (group, causal, layout)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, kv, out, lse = ctx.saved_tensors
        group, causal, layout = ctx.rest
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        result, mine = Attended(out=out.to(lse.dtype), lse=lse), chunks_of(rank, size, layout)
        exchange = start([kv] if size > 1 else [], group)
        dq, own = gradients(q, kv, result, grad, mine, mine, causal)  # meanwhile
        sums = start([], group)  # of dK and dV, on their way; nobody's yet
        for step in range(1, size):
            (held,) = finish(exchange)
            exchange = start([held] if step < size - 1 else [], group)
            theirs = chunks_of((rank - step) % size, size, layout)
            more, part = gradients(q, held, result, grad, mine, theirs, causal)  # meanwhile
            dq += more
            for received in finish(sums):
                part += received
            sums = start([part], group)
        for received in finish(sums):
            own += received
        return dq.to(q.dtype), own.to(kv.dtype), None, None, None
