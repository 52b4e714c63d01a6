"""expect: lab08.mesh_groups.twice

The groups along each axis, one after the other.
"""

from itertools import product


def mesh_groups(sizes, axes):
    found = []
    for wanted in axes:
        groups = {}
        for rank, place in enumerate(product(*(range(size) for size in sizes.values()))):
            rest = tuple(at for axis, at in zip(sizes, place, strict=True) if axis != wanted)
            groups.setdefault(rest, []).append(rank)
        found += groups.values()
    return found
