"""expect: lab08.mesh_groups.transposed

The stride is the product of the slower axes.
"""

from math import prod


def mesh_groups(sizes, axes):
    names, world_size = list(sizes), prod(sizes.values())
    stride = prod(sizes[name] for name in names[: names.index(axes[0])])
    groups = {}
    for rank in range(world_size):
        digit = rank // stride % sizes[axes[0]]
        groups.setdefault(rank - digit * stride, []).append(rank)
    return list(groups.values())
