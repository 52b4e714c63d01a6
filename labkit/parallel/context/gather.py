"""All-gather attention: K and V are gathered once, the queries stay where they are.

Against the ring: one collective instead of cp-1 hops, and K and V of all tokens are held, until
backward is over. With few KV heads they are small beside q. Any mask would do, for all keys are
there. Nothing is computed while they travel.

Cost: S bytes of K and V a rank. Forward one all-gather, (cp-1) S bytes; backward one
reduce-scatter of cp S, (cp-1) S bytes.
Source: Llama 3 (arXiv 2407.21783), section 3.3.2.

Shapes: B batch, H heads, K KV heads, G = H/K heads that share one, T sequence, d head width.
"""

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_gather
from labkit.parallel.context.blocks import chunked_attention
from labkit.parallel.context.placement import Layout, chunk_order, chunks_of
from labkit.parallel.context.shapes import check_shards, grouped


def gather_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    group: dist.ProcessGroup,
    *,
    causal: bool = True,
    layout: Layout = "zigzag",
) -> torch.Tensor:
    """Attention of this rank's queries to the tokens of all ranks; as `ring_attention`."""
    check_shards(q, k, v, group, layout)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    kv = all_gather(torch.stack([k, v]), group, dim=3)  # [2, B, K, T, d], rank after rank
    mine, everyone = chunks_of(rank, size, layout), chunk_order(size, layout)
    out = chunked_attention(grouped(q, k), kv, mine, everyone, causal)  # [B, K, G, T/cp, d]
    return out.flatten(1, 2)  # [B, H, T/cp, d]
