"""Events written by hand, and fabrics whose times can be added up by hand."""

import pytest

from labkit.measure.events import Launch
from labkit.measure.fabric import Fabric

ALPHA, BETA = 3e-6, 2e-10
PLAIN = Fabric(alpha=ALPHA, beta=BETA, flops=1e12)
UNIT = Fabric(alpha=1.0, beta=0.25, flops=1.0)


def close(value):
    return pytest.approx(value, rel=1e-12, abs=0)


def collective(number, ranks, operation="all_reduce", size=8, axis="dp", peer=None):
    return Launch(id=number, operation=operation, axis=axis, ranks=ranks, bytes=size, peer=peer)


def message(number, operation, peer, world_size, size=0):
    ranks = tuple(range(world_size))
    return Launch(id=number, operation=operation, axis="pp", ranks=ranks, bytes=size, peer=peer)
