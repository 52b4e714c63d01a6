"""expect: lab08.mesh_groups.transposed

The first axis counts fastest.
"""

from itertools import product


def mesh_groups(sizes, axes):
    groups = {}
    for rank, place in enumerate(product(*(range(size) for size in reversed(sizes.values())))):
        rest = tuple(at for axis, at in zip(sizes, place[::-1], strict=True) if axis not in axes)
        groups.setdefault(rest, []).append(rank)
    return list(groups.values())
