"""expect: lab08.mesh_groups.others

Ranks that agree along the axes, not in the rest.
"""

from itertools import product


def mesh_groups(sizes, axes):
    groups = {}
    for rank, place in enumerate(product(*(range(size) for size in sizes.values()))):
        rest = tuple(at for axis, at in zip(sizes, place, strict=True) if axis in axes)
        groups.setdefault(rest, []).append(rank)
    return list(groups.values())
