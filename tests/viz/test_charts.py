"""Curves and bars show the data they are given, with units, and say the finding in the title."""

from labkit.viz.curves import Crossing, draw_cost_curves
from labkit.viz.rank_bytes import draw_rank_bytes
from labkit.viz.style import new_figure

SIZES = [1e3, 1e4, 1e5]


def axes():
    return new_figure(3).add_subplot()


def test_curves_keep_data_and_mark_the_crossing():
    seconds = {"tree": [1e-5, 1e-5, 9e-5], "ring": [3e-5, 3e-5, 3e-5]}
    crossing = Crossing(small="tree", large="ring", payload_bytes=3e4, seconds=3e-5)
    drawn = draw_cost_curves(
        axes(), SIZES, seconds, replayed={"ring": [(1e4, 3e-5)]}, crossing=crossing
    )
    tree, ring, dots = drawn.lines[:3]
    assert [list(line.get_ydata()) for line in (tree, ring)] == list(seconds.values())
    assert (list(dots.get_xdata()), list(dots.get_ydata())) == ([1e4], [3e-5])
    assert (drawn.get_xscale(), drawn.get_yscale()) == ("log", "log")
    assert drawn.get_title() == "Below 30 kB tree is faster, above it ring"
    assert [text.get_text() for text in drawn.texts] == ["30 kB"]
    assert tree.get_linestyle() != ring.get_linestyle()  # told apart without colour


def test_curves_without_a_crossing_promise_nothing():
    seconds = {"tree": [1e-5, 1e-5, 2e-5]}
    drawn = draw_cost_curves(axes(), SIZES, seconds)
    assert drawn.get_title() == "Virtual time of an all-reduce"
    assert list(drawn.texts) == []


def test_bars_are_megabytes_and_the_title_names_the_busiest():
    drawn = draw_rank_bytes(axes(), {"gather_broadcast": [6e6, 2e6, 2e6, 2e6], "ring": [3e6] * 4})
    assert [bar.get_height() for bar in drawn.patches] == [6, 2, 2, 2, 3, 3, 3, 3]
    assert drawn.get_title() == "Equal totals; the busiest rank moves 6 MB against 3 MB"
    assert "MB" in drawn.get_ylabel()
    assert [text.get_text() for text in drawn.texts] == ["6", "2", "2", "2", "3", "3", "3", "3"]


def test_bars_with_other_totals_promise_nothing():
    assert draw_rank_bytes(axes(), {"ring": [1e6, 2e6], "tree": [3e6, 3e6]}).get_title() == (
        "Bytes through each rank"
    )
