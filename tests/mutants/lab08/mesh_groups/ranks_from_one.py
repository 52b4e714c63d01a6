"""expect: lab08.mesh_groups.unknown

Ranks count from 1.
"""

from itertools import product


def mesh_groups(sizes, axes):
    groups = {}
    for rank, place in enumerate(product(*(range(size) for size in sizes.values())), 1):
        rest = tuple(at for axis, at in zip(sizes, place, strict=True) if axis not in axes)
        groups.setdefault(rest, []).append(rank)
    return list(groups.values())
