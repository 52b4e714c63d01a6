"""expect: lab08.mesh_groups.strided

As far apart as can be, along every axis.
"""

from math import prod


def mesh_groups(sizes, axes):
    world_size = prod(sizes.values())
    num_groups = world_size // prod(sizes[axis] for axis in axes)
    return [list(range(start, world_size, num_groups)) for start in range(num_groups)]
