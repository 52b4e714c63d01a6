"""Pictures of a search keep its numbers; words name the best layout and what every bar is.

Oracle: the ranking itself, of a small model whose layouts are searched in a fraction of a second.
"""

from dataclasses import replace
from itertools import pairwise

import pytest

from labkit.cost.architecture import architecture
from labkit.cost.cluster import Cluster
from labkit.cost.hardware import device, link
from labkit.cost.layout import Layout
from labkit.cost.planner import plan
from labkit.viz import plans as viz
from labkit.viz.style import new_figure
from tests.viz.test_style import luminance

H100S = Cluster(device=device("h100"), intra=link("nvlink4"), inter=link("infiniband-ndr"))


def ranked(model="mini", num_devices=4, **changed):
    cluster = replace(H100S, device=replace(device("h100"), **changed))
    question = dict(num_devices=num_devices, seq_len=64, batch_tokens=8 * 64)
    return plan(architecture(model), cluster=cluster, **question)


@pytest.fixture(scope="module")
def ranking():
    return ranked()


def drawn(draw, *given, **options):
    return draw(new_figure(3).add_subplot(), *given, **options)


def test_a_set_of_axes_is_shown_once_by_its_fastest_layout(ranking):
    shown = viz.fastest_by_axes(ranking)
    names = [(e.layout.dp, e.layout.pp, e.layout.tp, e.layout.cp) for e in shown]
    assert len(set(names)) == len(names)
    seconds = [each.step.total_s for each in shown]
    assert seconds == sorted(seconds)
    assert shown[0] is ranking.best
    assert len(names) == len(
        {(e.layout.dp, e.layout.pp, e.layout.tp, e.layout.cp) for e in ranking.fitting}
    )


def test_bars_are_as_long_as_the_step_and_named(ranking):
    axes = drawn(viz.draw_step_parts, ranking, count=3)
    shown = viz.fastest_by_axes(ranking)[:3]
    assert len(axes.patches) == 3 * len(viz.PARTS)
    for place, each in enumerate(shown):
        bars = [bar for bar in axes.patches if round(bar.get_y() + 0.23) == place]
        ends = max(bar.get_x() + bar.get_width() for bar in bars)
        assert ends == pytest.approx(each.step.total_s)
        assert axes.texts[place].get_text().startswith(viz.layout_in_words(each.layout))
    assert axes.get_title().startswith(viz.layout_in_words(ranking.best.layout))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "compute",
        "optimizer",
        "exchanges in the open",
        "bubble",
    ]


def test_points_are_bytes_and_seconds_and_the_best_is_ringed(ranking):
    axes = drawn(viz.draw_memory_against_time, ranking, device_bytes=80_000_000_000)
    points, ring, budget, whole = axes.lines
    shown = viz.fastest_by_axes(ranking)
    assert list(points.get_xdata()) == [each.needed_bytes / 1e9 for each in shown]
    assert list(points.get_ydata()) == [each.step.total_s for each in shown]
    assert ring.get_ydata()[0] == min(points.get_ydata())
    assert (budget.get_xdata()[0], whole.get_xdata()[0]) == (72, 80)
    assert budget.get_linestyle() != whole.get_linestyle()
    assert axes.yaxis.get_minor_formatter()(0.2, 0) == "0.2"


def test_where_nothing_fits_the_parts_of_the_nearest_miss_add_up():
    ranking = ranked(memory_bytes=10**6)
    axes = drawn(viz.draw_nearest_miss, ranking)
    miss = ranking.nearest_miss
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert ends[-1] == pytest.approx(miss.needed_bytes / 1e9)
    assert all(
        right.get_x() == pytest.approx(end)
        for end, right in zip(ends, axes.patches[1:], strict=False)
    )
    assert axes.lines[0].get_xdata()[0] == pytest.approx(0.9e-3)
    assert axes.get_title().startswith("Nothing fits. The nearest: ")
    assert "900 kB" in axes.get_title()
    assert "Nothing fits" in viz.plan_pane(ranking, model="mini", device="h100")


@pytest.mark.parametrize(
    ("layout", "told"),
    [
        (Layout(), "one device"),
        (Layout(dp=8, pp=4, tp=2, zero=1), "DP 8, PP 4, TP 2, ZeRO 1"),
        (Layout(cp=2, ep=4, recompute="full"), "CP 2, EP 4, full recompute"),
        (Layout(tp=2, recompute="selective"), "TP 2, selective recompute"),
    ],
)
def test_a_layout_in_words(layout, told):
    assert viz.layout_in_words(layout) == told


def test_label_and_alt_text_hold_the_question_and_every_bar(ranking):
    label = viz.plan_label(ranking, model="mini", device="h100")
    assert label == "mini on 4 h100, 512 tokens a step"
    alt = viz.plan_alt(ranking, model="mini", device="h100", count=2)
    assert alt.startswith(label)
    for each in viz.fastest_by_axes(ranking)[:2]:
        assert f"{viz.layout_in_words(each.layout)}: compute " in alt


def test_the_explorer_has_a_pane_for_each_question():
    asked = []

    def answered(model, count):
        asked.append((model, count))
        return ranked(model, count)

    box = viz.plan_explorer(["nano", "mini"], [1, 2], answered, device="h100")
    assert asked == [("nano", 1), ("nano", 2), ("mini", 1), ("mini", 2)]
    assert len(box.children) == 3  # two controls and the panes
    panes = [pane.value for stack in box.children[2].children for pane in stack.children]
    assert len(set(panes)) == 4
    assert "nano on 1 h100" in panes[0]


def test_parts_differ_in_grey():
    for fills in ([colour for _, _, colour in viz.PARTS], list(viz.MEMORY.values())[:4]):
        levels = sorted(map(luminance, fills))
        assert min(b - a for a, b in pairwise(levels)) >= 0.17
