"""expect: lab08.mesh_groups.missing

Groups of one rank are not made.
"""

from itertools import product


def mesh_groups(sizes, axes):
    groups = {}
    for rank, place in enumerate(product(*(range(size) for size in sizes.values()))):
        rest = tuple(at for axis, at in zip(sizes, place, strict=True) if axis not in axes)
        groups.setdefault(rest, []).append(rank)
    return [group for group in groups.values() if len(group) > 1]
