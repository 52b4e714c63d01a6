"""Lab 08: the check of the groups of a mesh, which are numbers.

With sizes dp, pp, ep, tp from the slowest axis to the fastest, a rank's coordinates are its digits:

    rank = ((dp_rank * pp + pp_rank) * ep + ep_rank) * tp + tp_rank

A group along some axes holds the ranks that agree in all other coordinates. Groups may come in any
order; the ranks of one grow.

| promise    | decided by                                                   |
| ---------- | ------------------------------------------------------------ |
| partition  | every rank of the world is in one group                      |
| groups     | the digits of each rank, divided out one by one              |
| order      | ranks of a group grow, so a place in it is the coordinate    |
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch.distributed as dist

from labkit.grade.check import CheckFailed, Learner

Sizes = Mapping[str, int]
Axes = tuple[str, ...]
CUBE = {"dp": 2, "pp": 2, "ep": 1, "tp": 2}
UNEVEN = {"dp": 2, "pp": 3, "ep": 2, "tp": 4}
CASES: tuple[tuple[dict[str, int], Axes], ...] = (
    (UNEVEN, ("ep",)),
    (CUBE, ("tp",)),
    (CUBE, ("pp",)),
    (CUBE, ("dp",)),
    (CUBE, ("ep",)),
    (UNEVEN, ("pp",)),
    (UNEVEN, ("dp", "ep")),
    (UNEVEN, ("ep", "dp")),
    (UNEVEN, ("pp", "tp")),
    (UNEVEN, ("dp", "pp", "ep", "tp")),
    ({"dp": 1, "pp": 1, "ep": 1, "tp": 1}, ("dp",)),
    ({"dp": 3, "pp": 1, "ep": 2, "tp": 1}, ("dp", "ep")),
)


def run_mesh_groups(group: dist.ProcessGroup, learner: Any, cases: Sequence[Any]) -> list[Any]:
    """On one rank: the learner's groups for every case."""
    return [learner(dict(sizes), axes) for sizes, axes in cases]


def check_mesh_groups(learner: Learner) -> Iterator[str]:
    """The groups of every line through the grid."""
    for (sizes, axes), got in zip(CASES, learner.run(run_mesh_groups, 1, CASES)[0], strict=True):
        told = {
            "mesh": " x ".join(f"{n}={s}" for n, s in sizes.items()),
            "axes": " and ".join(axes),
        }
        judge_groups(got, sizes, axes, told)
    yield from ("partition", "groups", "order", "joint", "alone")


def groups_of(sizes: Sizes, axes: Sequence[str]) -> list[list[int]]:
    """The groups, by dividing each rank's digits out."""
    lines: dict[tuple[int, ...], list[int]] = {}
    for rank in range(prod(sizes.values())):
        left, rest = rank, []
        for axis in reversed(list(sizes)):
            left, digit = divmod(left, sizes[axis])
            rest.append(-1 if axis in axes else digit)
        lines.setdefault(tuple(rest), []).append(rank)
    return list(lines.values())


def judge_groups(got: Any, sizes: Sizes, axes: Axes, told: dict[str, Any]) -> None:
    """Form, partition, sizes, members, order, in this order."""
    if not isinstance(got, (list, tuple)) or not all(
        isinstance(each, (list, tuple)) and all(type(rank) is int for rank in each) for each in got
    ):
        raise CheckFailed("lab08.mesh_groups.form", got=f"{got!r:.60}", **told)
    expected, world = groups_of(sizes, axes), range(prod(sizes.values()))
    counted = Counter(rank for each in got for rank in each)
    shown = {"expected": _shown(expected), "got": _shown(got)}
    for key, ranks in (
        ("unknown", sorted(set(counted) - set(world))),
        ("missing", sorted(set(world) - set(counted))),
        ("twice", sorted(rank for rank, times in counted.items() if times > 1)),
    ):
        if ranks:
            raise CheckFailed(f"lab08.mesh_groups.{key}", rank=ranks[0], **shown, **told)
    if _members(got) != _members(expected):
        raise CheckFailed(f"lab08.mesh_groups.{_cause(got, sizes, axes)}", **shown, **told)
    for each in got:
        if list(each) != sorted(each):
            raise CheckFailed("lab08.mesh_groups.order", **shown, **told)


def _cause(got: Sequence[Sequence[int]], sizes: Sizes, axes: Axes) -> str:
    """The likeliest mistake behind wrong groups: the end of a message's key."""
    size = prod(sizes[axis] for axis in axes)
    world = prod(sizes.values())
    rest = tuple(axis for axis in sizes if axis not in axes)
    likely = {
        "transposed": groups_of({axis: sizes[axis] for axis in reversed(list(sizes))}, axes),
        "others": groups_of(sizes, rest),
        "blocks": [list(range(start, start + size)) for start in range(0, world, size)],
        "strided": [list(range(start, world, world // size)) for start in range(world // size)],
        **{f"only {axis}": groups_of(sizes, (axis,)) for axis in axes if len(axes) > 1},
    }
    for cause, groups in likely.items():
        if _members(got) == _members(groups):
            return cause.partition(" ")[0]
    return "size" if {len(each) for each in got} != {size} else "values"


def _members(groups: Sequence[Sequence[int]]) -> set[frozenset[int]]:
    return {frozenset(each) for each in groups}


def _shown(groups: Sequence[Sequence[int]]) -> str:
    """The first groups, in few words."""
    told = ", ".join(str(list(each[:8])) for each in groups[:4])
    return (told or "no group") + (", …" if len(groups) > 4 else "")
