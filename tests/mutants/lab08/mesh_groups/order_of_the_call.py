"""expect: lab08.mesh_groups.order

Ranks follow the order in which the axes are named.
"""

from itertools import product


def mesh_groups(sizes, axes):
    groups = {}
    others = [axis for axis in sizes if axis not in axes]
    order = others + list(axes)
    places = list(product(*(range(size) for size in sizes.values())))
    for place in product(*(range(sizes[axis]) for axis in order)):
        at = dict(zip(order, place, strict=True))
        rank = places.index(tuple(at[axis] for axis in sizes))
        groups.setdefault(place[: len(others)], []).append(rank)
    return list(groups.values())
