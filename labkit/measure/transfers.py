"""Seconds that a collective takes where links differ: the closed form at the slowest link it uses.

| operation                            | algorithm            | links it uses            |
| ------------------------------------ | -------------------- | ------------------------ |
| all_reduce                           | ring or binomial     | as below                 |
| reduce_scatter, all_gather           | ring                 | neighbours in group order |
| broadcast, reduce, gather, scatter, barrier | binomial tree | its edges, from the root |
| all_to_all                           | pairwise, equal shares | every pair             |

In each step of a ring every link is in use, so its time is exact; that of a tree is an upper bound.
The formulas and their sources are in `labkit.cost.collectives`.
"""

from collections.abc import Callable, Iterator

from labkit.cost.collectives import (
    pairwise_all_to_all_time_s,
    ring_all_gather_time_s,
    ring_all_reduce_time_s,
    ring_reduce_scatter_time_s,
    tree_all_reduce_time_s,
    tree_broadcast_time_s,
    tree_gather_time_s,
)

Pair = tuple[int, int]
Link = tuple[float, float]  # alpha in seconds a message, beta in seconds a byte
ALGORITHMS = ("ring", "tree", "cheaper")


def collective_time_s(
    operation: str,
    ranks: tuple[int, ...],
    payload_bytes: float,
    root: int | None,
    *,
    link: Callable[[int, int], Link],
    algorithm: str,
) -> float:
    """Seconds from the moment when all ranks are there.

    Args:
        operation: as in `Launch`.
        ranks: global ranks in group order, which is the order of the ring.
        payload_bytes: one rank's input, the root's of a broadcast or scatter.
        root: global rank of the root of a tree, None for the group's first.
        link: (alpha, beta) between two global ranks.
        algorithm: of an all-reduce: "ring", "tree", or "cheaper" of the two.

    Raises:
        ValueError: for an operation that is no collective.
    """
    if operation == "all_reduce":
        choices = ALGORITHMS[:2] if algorithm == "cheaper" else (algorithm,)
        algorithms = [f"{choice}_all_reduce" for choice in choices]
    else:
        algorithms = [operation]
    return min(_at_slowest_link(name, ranks, payload_bytes, root, link) for name in algorithms)


def _at_slowest_link(
    operation: str,
    ranks: tuple[int, ...],
    payload_bytes: float,
    root: int | None,
    link: Callable[[int, int], Link],
) -> float:
    size = len(ranks)
    match operation:
        case "ring_all_reduce":
            formula, pairs = ring_all_reduce_time_s, _ring_pairs(ranks)
        case "reduce_scatter":
            formula, pairs = ring_reduce_scatter_time_s, _ring_pairs(ranks)
        case "all_gather":
            formula, pairs = ring_all_gather_time_s, _ring_pairs(ranks)
        case "tree_all_reduce":
            formula, pairs = tree_all_reduce_time_s, _tree_pairs(ranks, root)
        case "broadcast" | "reduce" | "barrier":
            formula, pairs = tree_broadcast_time_s, _tree_pairs(ranks, root)
        case "gather":
            formula, pairs = tree_gather_time_s, _tree_pairs(ranks, root)
        case "scatter":  # the root's input is the pieces of all ranks together
            formula, pairs = tree_gather_time_s, _tree_pairs(ranks, root)
            payload_bytes = payload_bytes / size
        case "all_to_all":
            formula = pairwise_all_to_all_time_s
            pairs = ((a, b) for a in ranks for b in ranks if a != b)
        case _:
            raise ValueError(f'operation "{operation}" of ranks {ranks} is no collective')
    links = {link(*pair) for pair in pairs}
    # A group of one uses no link at all, and takes no time.
    return max((formula(payload_bytes, size, *each) for each in links), default=0.0)


def _ring_pairs(ranks: tuple[int, ...]) -> Iterator[Pair]:
    """Every rank and its successor; none in a group of one."""
    for position in range(len(ranks) if len(ranks) > 1 else 0):
        yield ranks[position - 1], ranks[position]


def _tree_pairs(ranks: tuple[int, ...], root: int | None) -> Iterator[Pair]:
    """Edges of the binomial tree that grows from the root, ranks counted on from it."""
    first = ranks.index(ranks[0] if root is None else root)
    ordered = ranks[first:] + ranks[:first]
    reached = 1
    while reached < len(ordered):
        yield from zip(ordered[:reached], ordered[reached : 2 * reached], strict=False)
        reached *= 2
