"""Bytes that a rank sends and receives in one call: the convention of the table in ledger.py.

The numbers describe the operation, not the wire: an implementation may send more (gloo's
reduce-scatter does) or less (a switch that adds). S is the payload, the bytes this rank puts in; N
is the group's size.

Where N does not divide S, group rank r's share S/N is ⌊S(r+1)/N⌋ − ⌊S·r/N⌋ bytes. So every number
is whole, less than 2 bytes from the formula, and exact when summed over the ranks. Over a group,
bytes sent equal bytes received.
"""

from collections.abc import Sequence

import torch


def traffic(
    operation: str,
    payload_bytes: int,
    num_ranks: int,
    group_rank: int,
    root: int | None,
    sends: Sequence[int] = (),
    expects: Sequence[int] = (),
) -> tuple[int, int]:
    """Bytes sent and received by one rank.

    Args:
        operation: a name from the table in ledger.py.
        payload_bytes: S; for a recv, a broadcast or a scatter away from the root, what arrives.
        num_ranks: N.
        group_rank: of this rank.
        root: group rank of the root, where there is one.
        sends: of an all_to_all, bytes for each group rank.
        expects: of an all_to_all, bytes from each group rank.
    """
    before, after = (payload_bytes * r // num_ranks for r in (group_rank, group_rank + 1))
    rest = payload_bytes - (after - before)  # (N−1)/N · S
    copies = (num_ranks - 1) * payload_bytes
    match operation:
        case "all_reduce":
            return 2 * rest, 2 * rest
        case "reduce_scatter":
            return rest, rest
        case "all_gather":
            return copies, copies
        case "all_to_all":
            return sum(sends) - sends[group_rank], sum(expects) - expects[group_rank]
        case "broadcast":
            return (copies, 0) if group_rank == root else (0, payload_bytes)
        case "scatter":
            return (rest, 0) if group_rank == root else (0, payload_bytes)
        case "reduce" | "gather":
            return (0, copies) if group_rank == root else (payload_bytes, 0)
        case "send":
            return payload_bytes, 0
        case "recv":
            return 0, payload_bytes
        case "barrier":
            return 0, 0
    raise ValueError(f"no operation {operation!r}")


def split_bytes(x: torch.Tensor, rows: Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """Bytes of each part of x, split along its first dimension; no rows given means equal parts."""
    if not rows:
        return (tensor_bytes(x) // num_ranks,) * num_ranks
    row_bytes = x.shape[1:].numel() * x.element_size()
    return tuple(row_bytes * num_rows for num_rows in rows)


def tensor_bytes(x: torch.Tensor) -> int:
    """Bytes of the elements of x, whatever its storage."""
    return x.numel() * x.element_size()
