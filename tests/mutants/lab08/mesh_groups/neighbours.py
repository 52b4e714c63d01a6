"""expect: lab08.mesh_groups.blocks

Neighbours, along every axis.
"""

from math import prod


def mesh_groups(sizes, axes):
    size = prod(sizes[axis] for axis in axes)
    return [list(range(start, start + size)) for start in range(0, prod(sizes.values()), size)]
