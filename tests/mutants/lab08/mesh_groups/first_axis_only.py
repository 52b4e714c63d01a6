"""expect: lab08.mesh_groups.only

Of several axes the first one counts.
"""

from itertools import product


def mesh_groups(sizes, axes):
    groups = {}
    for rank, place in enumerate(product(*(range(size) for size in sizes.values()))):
        rest = tuple(at for axis, at in zip(sizes, place, strict=True) if axis != axes[0])
        groups.setdefault(rest, []).append(rank)
    return list(groups.values())
