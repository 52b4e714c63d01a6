"""All-to-all attention: for the time of the attention, heads are split and the sequence is whole.

    before    every rank: all heads of T/cp tokens
    within    every rank: H/cp heads of all tokens; attention as on one device
    after     every rank: all heads of T/cp tokens again

A rank works on whole sequences, so the work is equal in either layout. But there must be heads
enough: cp divides H. KV heads either divide too, or are fewer than the ranks and divide them; then
each is sent to the cp/K ranks that need it, and its gradients are summed on the way back.

Cost: S bytes of q, R of K and V with their copies; each way an all-to-all of S + R in, S out, of
which (cp-1)/cp is sent; backward the same the other way round.
Source: DeepSpeed Ulysses (arXiv 2309.14509), section 3.

Shapes: B batch, H heads, K KV heads, T sequence, d head width.
"""

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_to_all
from labkit.parallel.context.blocks import chunked_attention
from labkit.parallel.context.placement import Layout, chunk_order
from labkit.parallel.context.shapes import check_shards, grouped


def heads_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: dist.ProcessGroup,
    *,
    causal: bool = True,
    layout: Layout = "zigzag",
) -> torch.Tensor:
    """Attention of this rank's queries to the tokens of all ranks; as `ring_attention`.

    Raises:
        ValueError: if shapes do not fit, or heads do not divide over cp, before anything is sent.
    """
    check_shards(q, k, v, group, layout)
    size = dist.get_world_size(group)
    copies = _copies(q.shape[1], k.shape[1], size)
    k, v = (x.repeat_interleave(copies, 1) for x in (k, v))  # [B, K', T/cp, d], cp divides K'
    mine, theirs = q.shape[1] // size, k.shape[1] // size  # heads a rank
    together = [x.unflatten(1, (size, -1)) for x in (q, k, v)]
    heads = torch.cat(together, 2).flatten(1, 2)  # [B, H+2J', T/cp, d], rank after rank
    q, k, v = _to_heads(heads, group).split([mine, theirs, theirs], 1)  # [B, H/cp or K'/cp, T, d]
    q = q.clone()  # a view would keep all that was received until backward
    everyone = chunk_order(size, layout)
    out = chunked_attention(grouped(q, k), torch.stack([k, v]), everyone, everyone, causal)
    return _to_tokens(out.flatten(1, 2), group)  # [B, H, T/cp, d]


def _copies(num_heads: int, num_kv_heads: int, size: int) -> int:
    """How often each KV head is sent, so that every rank has the one that its heads need."""
    if num_heads % size:
        raise ValueError(
            f"{num_heads} heads over cp={size}: cp must divide them; use ring_attention or "
            "gather_attention, which split no heads"
        )
    if num_kv_heads % size and size % num_kv_heads:
        raise ValueError(
            f"{num_kv_heads} KV heads over cp={size}: one must divide the other; use "
            "ring_attention or gather_attention, which split no heads"
        )
    return max(1, size // num_kv_heads)


def _to_heads(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """[B, X, T/cp, d] to [B, X/cp, T, d]: tokens come rank after rank."""
    size = dist.get_world_size(group)
    received = all_to_all(x.movedim(1, 0), group)  # [X, B, T/cp, d], X/cp from each rank
    return received.unflatten(0, (size, -1)).permute(2, 1, 0, 3, 4).flatten(2, 3)


def _to_tokens(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """[B, X/cp, T, d] to [B, X, T/cp, d], the inverse of `_to_heads`."""
    size = dist.get_world_size(group)
    rows = x.unflatten(2, (size, -1)).permute(2, 1, 0, 3, 4).flatten(0, 1)  # [X, B, T/cp, d]
    return all_to_all(rows, group).movedim(0, 1)  # [B, X, T/cp, d]
