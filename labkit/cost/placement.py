"""Ranks on nodes: which groups cross nodes, and the bytes over the slow link.

The ranks of a grid are counted like digits: the last axis of an order changes fastest, so its ranks
are neighbours. k consecutive ranks share a node. An axis of n ranks with a stride of s (the product
of the sizes behind it) stays within nodes if every group does.

Bytes that leave a node, for what one rank sends along an axis:

| axis           | a rank's bytes go                     | hops of a group of n |
| -------------- | ------------------------------------- | -------------------- |
| dp, cp, tp     | to the next rank of its ring          | n                    |
| pp             | over a boundary, both ways together   | n − 1                |
| ep             | evenly to the n − 1 others            | n(n − 1)             |

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
Megatron-LM", arXiv 2104.04473, section 3.2 (which axis belongs inside a node).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise, permutations, product
from math import prod


def groups_of_axis(sizes: Mapping[str, int], order: Sequence[str], axis: str) -> list[list[int]]:
    """Global ranks of each group along an axis.

    Args:
        sizes: ranks along each axis.
        order: the axes, the one of nearest neighbours last.
        axis: one of them.

    Raises:
        ValueError: if the order does not name every axis once.
    """
    _check(sizes, order)
    position = list(order).index(axis)
    stride = prod(sizes[name] for name in order[position + 1 :])
    block = stride * sizes[axis]
    starts = product(range(0, prod(sizes.values()), block), range(stride))
    return [[first + near + i * stride for i in range(sizes[axis])] for first, near in starts]


def crossing_axes(
    sizes: Mapping[str, int], order: Sequence[str], *, ranks_per_node: int
) -> list[str]:
    """The axes with a group on more than one node, in the order's order."""
    return [
        axis
        for axis in order
        if any(
            len({rank // ranks_per_node for rank in group}) > 1
            for group in groups_of_axis(sizes, order, axis)
        )
    ]


def slow_link_bytes(
    sizes: Mapping[str, int],
    order: Sequence[str],
    bytes_by_axis: Mapping[str, float],
    *,
    ranks_per_node: int,
) -> dict[str, float]:
    """Bytes between nodes, of all ranks together, by axis.

    Args:
        bytes_by_axis: what one rank sends along an axis; for pp, what crosses one boundary.
    """
    crossing = {}
    for axis, rank_bytes in bytes_by_axis.items():
        total = 0.0
        for group in groups_of_axis(sizes, order, axis):
            hops = hops_of_group(axis, group)
            share = 1 / (len(group) - 1) if axis == "ep" and len(group) > 1 else 1.0
            far = sum(a // ranks_per_node != b // ranks_per_node for a, b in hops)
            total += far * share * rank_bytes
        crossing[axis] = total
    return crossing


def ranked_orders(
    sizes: Mapping[str, int], bytes_by_axis: Mapping[str, float], *, ranks_per_node: int
) -> list[tuple[float, tuple[str, ...]]]:
    """Every order of the axes longer than one, with its bytes between nodes, fewest first."""
    axes = {axis: size for axis, size in sizes.items() if size > 1}
    sent = {axis: number for axis, number in bytes_by_axis.items() if axis in axes}
    totals = []
    for order in permutations(axes):
        crossing = slow_link_bytes(axes, order, sent, ranks_per_node=ranks_per_node)
        totals.append((sum(crossing.values()), order))
    return sorted(totals)


def hops_of_group(axis: str, group: Sequence[int]) -> list[tuple[int, int]]:
    """(from, to) of the messages along an axis; over a boundary of pp both ways are one hop."""
    if len(group) == 1:
        return []
    if axis == "ep":
        return [(a, b) for a, b in product(group, repeat=2) if a != b]
    line = list(pairwise(group))
    return line if axis == "pp" else [*line, (group[-1], group[0])]


def _check(sizes: Mapping[str, int], order: Sequence[str]) -> None:
    if sorted(order) != sorted(sizes):
        raise ValueError(
            f"the order {', '.join(order)} must name each of {', '.join(sizes)} exactly once"
        )
