"""expect: lab08.mesh_groups.order

Ranks of a group fall.
"""

from itertools import product


def mesh_groups(sizes, axes):
    groups = {}
    for rank, place in enumerate(product(*(range(size) for size in sizes.values()))):
        rest = tuple(at for axis, at in zip(sizes, place, strict=True) if axis not in axes)
        groups.setdefault(rest, []).insert(0, rank)
    return list(groups.values())
