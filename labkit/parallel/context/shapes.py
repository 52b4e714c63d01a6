"""What all three ways of attending ask of their arguments, and the form in which they compute.

A rank sees its own shard. Each rule here is about sizes that are the same on every rank of a
correct program, so all ranks raise together, and nothing has been sent yet. That two ranks hold
shards of different sizes nobody sees alone; `shard_sequence` makes equal ones, and the launcher's
`debug` compares every message before it is sent.

Shapes: B batch, H heads, K KV heads, G = H/K heads that share one, T sequence, d head width.
"""

import torch
import torch.distributed as dist

from labkit.parallel.context.placement import Layout, chunks_of


def check_shards(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, group: dist.ProcessGroup, layout: Layout
) -> None:
    """Raise a ValueError unless q [B, H, T/cp, d], k and v [B, K, T/cp, d] fit together."""
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(f"q, k, v are [batch, heads, tokens, width], got {shapes}")
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[2:] != k.shape[2:]:
        raise ValueError(f"{shapes}: only the heads of q may differ from those of k and v")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q is {q.dtype}, k {k.dtype}, v {v.dtype}: cast them to one")
    if q.shape[1] % k.shape[1]:
        raise ValueError(
            f"{q.shape[1]} heads over {k.shape[1]} KV heads: they must share them evenly"
        )
    size = dist.get_world_size(group)
    parts, tokens = len(chunks_of(0, size, layout)), q.shape[2]
    if tokens % parts or not tokens:
        raise ValueError(
            f"{tokens} tokens a rank at cp={size}: {layout} needs a multiple of {parts}; pad the "
            f'sequence to a multiple of {parts * size}, or use "contiguous" on every rank'
        )


def grouped(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """q [B, K, G, T/cp, d] of q [B, H, T/cp, d]: heads by the KV head that they share."""
    return q.unflatten(1, (k.shape[1], q.shape[1] // k.shape[1]))
