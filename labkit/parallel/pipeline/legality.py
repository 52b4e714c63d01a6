"""Which numbers of ranks p, micro-batches m and chunks v each schedule can do, as a table.

| schedule                                         | legal                      |
| ------------------------------------------------ | -------------------------- |
| naive, gpipe, one_f_one_b, zero_bubble           | p ≥ 1, m ≥ 1, v = 1        |
| zero_bubble_v                                    | p ≥ 1, m ≥ 1, v = 2        |
| interleaved                                      | m a multiple of p, v ≥ 2   |
| dual_pipe_v                                      | m ≥ 2p, v = 2              |

A pipeline with m < p is legal where nothing else is said: some ranks then idle all the longer.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Legality:
    """What a schedule asks of p, m and v, and which schedule asks for less."""

    least_per_rank: int = 0  # m ≥ this · p
    multiple_of_ranks: bool = False
    least_chunks: int = 1
    most_chunks: int | None = 1
    instead: str = "gpipe"


LEGALITY = {
    "naive": Legality(),
    "gpipe": Legality(),
    "one_f_one_b": Legality(),
    "interleaved": Legality(
        multiple_of_ranks=True, least_chunks=2, most_chunks=None, instead="one_f_one_b"
    ),
    "zero_bubble": Legality(),
    "zero_bubble_v": Legality(least_chunks=2, most_chunks=2),
    "dual_pipe_v": Legality(
        least_per_rank=2, least_chunks=2, most_chunks=2, instead="zero_bubble_v"
    ),
}


def why_illegal(
    name: str, num_ranks: int, num_micro_batches: int, chunks: int | None = None
) -> str | None:
    """Why a schedule cannot be made, with both numbers and the way out; None if it can.

    Args:
        name: a key of `LEGALITY`.
        num_ranks: p.
        num_micro_batches: m.
        chunks: v; None for the least that the schedule takes.
    """
    legality = LEGALITY[name]
    chunks = legality.least_chunks if chunks is None else chunks
    got = f"{name} with {num_micro_batches} micro-batches on {num_ranks} ranks"
    if num_ranks < 1 or num_micro_batches < 1:
        return f"{got}: it needs at least 1 of each"
    if chunks < legality.least_chunks or chunks > (legality.most_chunks or chunks):
        most = legality.most_chunks or "more"
        return f"{name} with {chunks} chunks a rank: it takes {legality.least_chunks} to {most}"
    least = legality.least_per_rank * num_ranks
    if num_micro_batches < least:
        return f"{got}: it needs at least {least}; raise them, or use {legality.instead}"
    if legality.multiple_of_ranks and num_micro_batches % num_ranks:
        return f"{got}: it needs a multiple of {num_ranks}; change them, or use {legality.instead}"
    return None


def require_legal(
    name: str, num_ranks: int, num_micro_batches: int, chunks: int | None = None
) -> None:
    """Raise a ValueError if a schedule cannot be made."""
    why = why_illegal(name, num_ranks, num_micro_batches, chunks)
    if why:
        raise ValueError(why)
