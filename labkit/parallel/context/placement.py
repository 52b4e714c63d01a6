"""Which tokens of a sequence are on which rank, and where they stand in the whole.

| layout     | the sequence is cut into | rank r holds            |
| ---------- | ------------------------ | ----------------------- |
| contiguous | cp chunks                | chunk r                 |
| zigzag     | 2 cp chunks              | chunks r and 2 cp-1-r   |

A token attends to those before it, so late tokens are more work than early ones. Zigzag gives each
rank an early chunk and a late one: 2 cp+1 pairs of chunks on every rank. A shard's tokens are no
longer neighbours, so a position embedding has to take `positions`, not a range from 0.

Cost: no communication; `unshard_sequence` is one all-gather.
Source: Llama 3 (arXiv 2407.21783), section 3.3.2.

Shapes: B batch, T sequence.
"""

from typing import Literal, get_args

import torch
import torch.distributed as dist

from labkit.comm.collectives import gather_from, scatter_to

Layout = Literal["contiguous", "zigzag"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


def chunks_of(rank: int, world_size: int, layout: Layout) -> tuple[int, ...]:
    """Numbers of the chunks that a rank holds, in the order in which it holds them.

    Raises:
        ValueError: for a layout that does not exist.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout is one of {LAYOUTS}, got {layout!r}")
    return (rank,) if layout == "contiguous" else (rank, 2 * world_size - 1 - rank)


def chunk_order(world_size: int, layout: Layout) -> tuple[int, ...]:
    """The chunks of all ranks, one rank after the other."""
    return tuple(c for rank in range(world_size) for c in chunks_of(rank, world_size, layout))


def positions(
    seq_len: int,
    group: dist.ProcessGroup,
    *,
    layout: Layout = "zigzag",
    device: torch.device | None = None,
) -> torch.Tensor:
    """Where this rank's tokens stand in the sequence: whole numbers [T/cp], for RoPE and masks.

    Raises:
        ValueError: if the sequence does not divide into chunks.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    length = _chunk_length(seq_len, size, layout)
    places = torch.arange(seq_len, device=device).view(-1, length)  # [chunks, T/chunks]
    return places[list(chunks_of(rank, size, layout))].flatten()  # [T/cp]


def shard_sequence(
    x: torch.Tensor, group: dist.ProcessGroup, *, dim: int = 1, layout: Layout = "zigzag"
) -> torch.Tensor:
    """This rank's tokens of what every rank holds whole, in new memory.

    Backward gathers: every rank gets the gradient of all tokens.

    Args:
        x: with T tokens along dim.
        group: the ranks that share the sequence.
        dim: of the tokens.
        layout: who holds which.

    Raises:
        ValueError: if the sequence does not divide into chunks.
    """
    size = dist.get_world_size(group)
    _chunk_length(x.shape[dim], size, layout)
    return scatter_to(_reordered(x, chunk_order(size, layout), dim), group, dim)


def unshard_sequence(
    x: torch.Tensor, group: dist.ProcessGroup, *, dim: int = 1, layout: Layout = "zigzag"
) -> torch.Tensor:
    """All tokens in the sequence's order, from each rank's shard; the inverse of `shard_sequence`.

    What follows has to be the same on every rank: backward takes this rank's own slice.

    Raises:
        ValueError: if the shard does not divide into chunks.
    """
    size = dist.get_world_size(group)
    _chunk_length(x.shape[dim] * size, size, layout)
    order = chunk_order(size, layout)
    back = tuple(order.index(chunk) for chunk in range(len(order)))
    return _reordered(gather_from(x, group, dim), back, dim)


def _chunk_length(seq_len: int, size: int, layout: Layout) -> int:
    """Tokens of a chunk."""
    num_chunks = size * len(chunks_of(0, size, layout))
    if seq_len % num_chunks or not seq_len:
        way_out = "" if layout == "contiguous" else f', or use "contiguous" ({size} chunks)'
        raise ValueError(
            f"{seq_len} tokens over cp={size}: {layout} cuts a sequence into {num_chunks} chunks; "
            f"pad it to a multiple of {num_chunks}{way_out}"
        )
    return seq_len // num_chunks


def _reordered(x: torch.Tensor, order: tuple[int, ...], dim: int) -> torch.Tensor:
    chunks = x.chunk(len(order), dim)
    return torch.cat([chunks[i] for i in order], dim)
