"""The order of ranks that puts one axis over the hosts. Oracle: places counted by hand."""

from itertools import product

import pytest

from labkit.train.placement import rank_order

SIZES = {"dp": 2, "pp": 2, "tp": 2}


@pytest.mark.parametrize(
    ("across", "order"),
    [
        ("dp", [0, 1, 2, 3, 4, 5, 6, 7]),  # the mesh's own
        ("pp", [0, 1, 4, 5, 2, 3, 6, 7]),
        ("tp", [0, 4, 1, 5, 2, 6, 3, 7]),
    ],
)
def test_by_hand(across, order):
    assert rank_order(SIZES, across) == order


@pytest.mark.parametrize("across", ["dp", "pp", "cp", "ep", "tp"])
def test_only_partners_on_that_axis_are_on_different_hosts(across):
    """Two hosts: ranks of the lower and the upper half."""
    axes = ("dp", "pp", "cp", "ep", "tp")
    order = rank_order(dict.fromkeys(axes, 2), across)
    host = {place: rank // 16 for place, rank in zip(product((0, 1), repeat=5), order, strict=True)}
    assert sorted(order) == list(range(32))
    assert all(where == place[axes.index(across)] for place, where in host.items())


def test_an_axis_that_cannot_cross():
    with pytest.raises(ValueError, match="no axis 'rows': the axes are dp, pp, cp, ep, tp"):
        rank_order(SIZES, "rows")
    with pytest.raises(ValueError, match="cp=1: one rank cannot lie on two hosts"):
        rank_order(SIZES, "cp")
