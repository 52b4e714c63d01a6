"""Which axis of the mesh crosses the hosts: the order of ranks in the grid.

    Mesh(pp=2, tp=4, ranks=rank_order({"pp": 2, "tp": 4}, "pp"))

torchrun numbers ranks host by host. The mesh counts dp slowest and tp fastest, so partners of tp
have neighbouring numbers, and what lies far apart differs in dp. With another axis counted slowest,
its partners are a half, a third, ... of the world apart, and on different hosts if there are as
many hosts, while everything else stays on one host.

Cost: none.
"""

from collections.abc import Mapping
from itertools import product
from math import prod

from labkit.comm.mesh import AXES


def rank_order(sizes: Mapping[str, int], across: str) -> list[int]:
    """Global ranks in the order of the grid, with the axis `across` counted slowest.

    Args:
        sizes: ranks along each axis; one that is not named has 1.

    Raises:
        ValueError: if the axis does not exist or has one rank.
    """
    if across not in AXES:
        raise ValueError(f"no axis {across!r}: the axes are {', '.join(AXES)}")
    if (size := sizes.get(across, 1)) == 1:
        raise ValueError(f"{across}={size}: one rank cannot lie on two hosts; use another axis")
    outer = (across, *(axis for axis in AXES if axis != across))
    strides = {
        axis: prod(sizes.get(inner, 1) for inner in outer[at + 1 :])
        for at, axis in enumerate(outer)
    }
    places = product(*(range(sizes.get(axis, 1)) for axis in AXES))
    return [
        sum(at * strides[axis] for axis, at in zip(AXES, place, strict=True)) for place in places
    ]
