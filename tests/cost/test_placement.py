"""Ranks on nodes: groups against a reshaped count, bytes against a count by hand."""

import pytest
import torch

from labkit.cost.placement import crossing_axes, groups_of_axis, ranked_orders, slow_link_bytes

SIZES = {"dp": 2, "pp": 3, "tp": 4}
ORDER = ("dp", "pp", "tp")


@pytest.mark.parametrize("order", [ORDER, ("tp", "pp", "dp"), ("pp", "dp", "tp")])
@pytest.mark.parametrize("axis", ORDER)
def test_groups_are_those_of_a_reshaped_count(order, axis):
    grid = torch.arange(24).reshape([SIZES[name] for name in order])
    wanted = grid.movedim(order.index(axis), -1).reshape(-1, SIZES[axis]).tolist()
    assert sorted(groups_of_axis(SIZES, order, axis)) == sorted(wanted)


@pytest.mark.parametrize(
    ("ranks_per_node", "crossing"),
    [(24, []), (12, ["dp"]), (8, ["dp", "pp"]), (4, ["dp", "pp"]), (2, ["dp", "pp", "tp"])],
)
def test_axes_that_cross(ranks_per_node, crossing):
    assert crossing_axes(SIZES, ORDER, ranks_per_node=ranks_per_node) == crossing


def test_bytes_by_hand():
    """Two nodes of four: a ring of two crosses twice, a boundary once, a ring inside never."""
    sent = {"dp": 10, "tp": 1000}
    sizes = {"dp": 2, "tp": 4}
    near = slow_link_bytes(sizes, ("dp", "tp"), sent, ranks_per_node=4)
    assert near == {"dp": 4 * 2 * 10, "tp": 0}
    far = slow_link_bytes(sizes, ("tp", "dp"), sent, ranks_per_node=4)
    assert far == {"dp": 0, "tp": 2 * 2 * 1000}
    line = slow_link_bytes({"pp": 4}, ("pp",), {"pp": 7}, ranks_per_node=2)
    assert line == {"pp": 7}
    experts = slow_link_bytes({"ep": 4}, ("ep",), {"ep": 3}, ranks_per_node=2)
    assert experts["ep"] == pytest.approx(4 * 3 * 2 / 3)


def test_best_order_keeps_the_loudest_axis_inside():
    sent = {"dp": 10, "pp": 1, "cp": 5, "tp": 1000}
    ranked = ranked_orders({"dp": 2, "pp": 2, "cp": 1, "tp": 4}, sent, ranks_per_node=4)
    assert len(ranked) == 6
    assert ranked[0][1][-1] == "tp"
    assert ranked[-1][1][-1] != "tp"


def test_an_order_that_forgets_an_axis():
    with pytest.raises(ValueError, match=r"dp, tp must name each of dp, pp, tp exactly once"):
        groups_of_axis(SIZES, ("dp", "tp"), "dp")
