"""expect: lab08.mesh_groups.missing

Only the group of rank 0.
"""

from itertools import product


def mesh_groups(sizes, axes):
    groups = {}
    for rank, place in enumerate(product(*(range(size) for size in sizes.values()))):
        rest = tuple(at for axis, at in zip(sizes, place, strict=True) if axis not in axes)
        groups.setdefault(rest, []).append(rank)
    return [groups[min(groups)]]
