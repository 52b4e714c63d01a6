"""A grid of ranks: one process group for every line along every axis.

    world_size = dp * pp * cp * ep * tp
    rank = (((dp_rank * pp + pp_rank) * cp + cp_rank) * ep + ep_rank) * tp + tp_rank

Ranks are laid out like the digits of a number. The axes, from slowest to fastest:

| axis | what its ranks share out | what they exchange, and how often           |
| ---- | ------------------------ | ------------------------------------------- |
| dp   | the batch                | gradients, once a step                      |
| pp   | the layers               | one activation a micro-batch and stage      |
| cp   | the sequence             | keys and values, in every attention         |
| ep   | the experts              | tokens, twice in every mixture-of-experts   |
| tp   | the columns and rows     | activations, twice in every block           |

The axis that talks most is the fastest: its ranks are neighbours, so they sit on the same host.
`ep` is an axis of its own. Dense weights are replicated along it, so their gradients are summed
over dp, cp and ep; those of the experts over dp and cp only. Such joint groups are asked for when
the mesh is built.

Cost: no communication. torch names groups by counting, so every rank must make every group, in the
same order.
Source: picotron's process_group_manager, which cuts its groups out of one grid.
"""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import torch.distributed as dist

AXES = ("dp", "pp", "cp", "ep", "tp")  # slowest to fastest


class Mesh:
    """This rank's place in the grid, and its groups.

    A group's ranks are in the order of their coordinates, so `dist.get_rank(mesh.group("tp"))` is
    the coordinate. An axis of size one has its group too, of this rank alone. An axis that spans
    the world has its own group, not the default one, so that a ledger can tell them apart:
    `group_desc` is the axis.

    Args:
        dp, pp, cp, ep, tp: sizes of the axes; their product is the world size.
        joint: groups over several axes at once, such as [("dp", "cp")]; described as "dp+cp".
        ranks: global ranks in the order of the grid; 0, 1, 2, ... unless given.

    Raises:
        ValueError: if the product is not the world size, `ranks` is not a permutation of the world,
            or a joint group names an axis that does not exist.
    """

    def __init__(
        self,
        *,
        dp: int = 1,
        pp: int = 1,
        cp: int = 1,
        ep: int = 1,
        tp: int = 1,
        joint: Sequence[tuple[str, ...]] = (),
        ranks: Sequence[int] | None = None,
    ):
        world_size = dist.get_world_size()
        self.sizes = dict(zip(AXES, (dp, pp, cp, ep, tp), strict=True))
        order = tuple(range(world_size)) if ranks is None else tuple(ranks)
        _check(self.sizes, world_size, order)
        # The grid: global rank -> coordinates. product() counts like a number, tp fastest.
        self._grid = dict(zip(order, product(*map(range, self.sizes.values())), strict=True))
        wanted = [(axis,) for axis in AXES] + [_in_axis_order(axes) for axes in joint]
        self._groups = {axes: self._make(axes) for axes in dict.fromkeys(wanted)}

    def size(self, axis: str) -> int:
        """Number of ranks along the axis."""
        return self.sizes[_known(axis)]

    def coordinate(self, axis: str) -> int:
        """This rank's position along the axis."""
        return self._grid[dist.get_rank()][AXES.index(_known(axis))]

    def group(self, *axes: str) -> dist.ProcessGroup:
        """The group of the ranks that differ from this one along these axes only.

        Raises:
            ValueError: if an axis does not exist, or the axes were not among the mesh's joint
                groups.
        """
        axes = _in_axis_order(axes)
        if axes not in self._groups:
            raise ValueError(f"no group over {axes}: build the Mesh with joint=[{axes}]")
        return self._groups[axes]

    def ranks(self, *axes: str) -> tuple[int, ...]:
        """Global ranks of the group over these axes, in group order."""
        return tuple(dist.get_process_group_ranks(self.group(*axes)))

    def neighbours(self, axis: str) -> tuple[int, int]:
        """Global ranks before and after this one on the axis, seen as a ring."""
        ranks, place = self.ranks(axis), self.coordinate(axis)
        return ranks[place - 1], ranks[(place + 1) % len(ranks)]

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{axis}={size}' for axis, size in self.sizes.items())})"

    def _make(self, axes: tuple[str, ...]) -> dist.ProcessGroup:
        """Make the groups of all lines along the axes, and keep the one through this rank."""
        lines: dict[tuple[int, ...], list[int]] = {}  # by the coordinates on the other axes
        for rank, place in self._grid.items():
            rest = tuple(at for axis, at in zip(AXES, place, strict=True) if axis not in axes)
            lines.setdefault(rest, []).append(rank)
        mine = None
        for line in lines.values():
            # torch sorts the ranks of a group unless told not to; only recent versions can be told.
            order: dict[str, Any] = {} if line == sorted(line) else {"sort_ranks": False}
            group = dist.new_group(line, group_desc="+".join(axes), **order)
            mine = group if dist.get_rank() in line else mine
        assert mine is not None, "a permutation of the world puts every rank on one line"
        return mine


def _check(sizes: dict[str, int], world_size: int, order: tuple[int, ...]) -> None:
    for axis, size in sizes.items():
        if size < 1:
            raise ValueError(f"axis {axis} has size {size}, the least is 1")
    if (places := prod(sizes.values())) != world_size:
        told = " * ".join(f"{axis}={size}" for axis, size in sizes.items())
        raise ValueError(f"the mesh has {told} = {places} ranks, the world has {world_size}")
    if sorted(order) != list(range(world_size)):
        raise ValueError(f"ranks {order} are not a permutation of 0 to {world_size - 1}")


def _known(axis: str) -> str:
    if axis not in AXES:
        raise ValueError(f"no axis {axis!r}: the axes are {', '.join(AXES)}")
    return axis


def _in_axis_order(axes: Sequence[str]) -> tuple[str, ...]:
    if not axes:
        raise ValueError(f"a group needs an axis, of {', '.join(AXES)}")
    return tuple(sorted({_known(axis) for axis in axes}, key=AXES.index))
