"""Cubes, ranks on nodes, triangles and intervals keep the numbers that they are drawn from.

Oracles: a reshaped count of ranks; hops counted by hand; the closed form of goodput.
"""

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Rectangle

from labkit.cost.goodput import FailureCosts
from labkit.parallel.context.placement import chunk_order
from labkit.viz.context import context_alt, draw_context, holders
from labkit.viz.interval import interval_explorer, interval_pane
from labkit.viz.mesh import draw_cube, mesh_alt
from labkit.viz.nodes import draw_nodes, nodes_alt, nodes_told, order_explorer
from labkit.viz.style import COMMUNICATION, new_figure

CUBE, SIZES = {"dp": 2, "pp": 2, "tp": 2}, {"dp": 2, "pp": 2, "tp": 4}


def axes():
    return new_figure(2).add_subplot()


@pytest.mark.parametrize("axis", CUBE)
def test_discs_of_a_group_share_a_colour_and_others_do_not(axis):
    discs = [line for line in draw_cube(axes(), CUBE, axis).lines if line.get_marker() == "o"]
    drawn = [line.get_color() for line in discs]
    assert len(drawn) == 8
    assert len(set(drawn)) == 4
    assert all(drawn.count(colour) == 2 for colour in drawn)


def test_groups_in_words_are_those_of_a_reshaped_count():
    count = torch.arange(8).reshape(2, 2, 2)
    for dim, axis in enumerate(CUBE):
        groups = count.movedim(dim, -1).reshape(-1, 2).tolist()
        told = ", ".join(f"{a} {b}" for a, b in groups)
        assert f"Along {axis} the groups are {told}" in mesh_alt(CUBE)


@pytest.mark.parametrize(("order", "crossing"), [(("dp", "pp", "tp"), 0), (("tp", "dp", "pp"), 16)])
def test_orange_arcs_are_the_hops_that_leave_a_node(order, crossing):
    drawn = draw_nodes(axes(), SIZES, order, "tp", ranks_per_node=4)
    arcs = [each for each in drawn.patches if isinstance(each, FancyArrowPatch)]
    orange = [each for each in arcs if to_hex(each.get_edgecolor()) == COMMUNICATION]
    assert len(arcs) == 16
    assert len(orange) == crossing
    assert f"{crossing} of 16 hops" in nodes_alt(SIZES, order, "tp", ranks_per_node=4)


def test_bytes_between_nodes_in_words():
    told = nodes_told(CUBE, ("dp", "pp", "tp"), {"dp": 1e9, "tp": 5e9}, ranks_per_node=4)
    assert told == "Between nodes in a step: dp 8 GB, tp 0 B; together 8 GB"


def test_the_explorer_has_every_order_and_axis():
    box = order_explorer({"dp": 2, "tp": 2}, {"dp": 1.0, "tp": 2.0}, ranks_per_node=2)
    panes = [pane.value for stack in box.children[-1].children for pane in stack.children]
    assert len(set(panes)) == 4


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_rows_are_held_as_the_library_places_them(layout):
    order, ranks = chunk_order(4, layout), holders(4, layout)
    each = len(order) // 4
    assert ranks == [order.index(chunk) // each for chunk in range(len(order))]
    drawn = draw_context(axes(), 4, layout)
    squares = [each for each in drawn.patches if isinstance(each, Rectangle)]
    assert len(squares) == len(order) * (len(order) + 1) // 2


def test_shares_of_the_work():
    told = context_alt(4, ("contiguous", "zigzag"))
    assert "10 %, 20 %, 30 %, 40 %" in told
    assert "25 %, 25 %, 25 %, 25 %" in told


def test_a_pane_for_each_world_and_save():
    costs = FailureCosts(between_failures_s=1e4, save_s=60.0, restart_s=600.0)
    assert "1,024 devices; a save of 60 s" in interval_pane(costs, 1024)
    box = interval_explorer((64, 128), (60.0,), (0.0, 0.5), device_s=1e7, restart_s=600.0)
    panes = [p.value for s in box.children[-1].children for t in s.children for p in t.children]
    assert len(set(panes)) == 4
