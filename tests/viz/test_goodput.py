"""The pictures of goodput show the numbers they were given. Oracle: the closed form and the run."""

import pytest
from matplotlib.colors import to_rgba

from labkit.cost.failures import SAVE, WORK, WRITE, simulate_run
from labkit.cost.goodput import (
    FailureCosts,
    daly_interval_s,
    expected_goodput,
    young_interval_s,
)
from labkit.viz import style
from labkit.viz.goodput import draw_goodput, draw_run, goodput_alt, run_alt

COSTS = FailureCosts(between_failures_s=10_800, save_s=60, restart_s=600)
ENDS = (60, 14_400)


def drawn(**options):
    return draw_goodput(style.new_figure(3.8).add_subplot(), COSTS, ends_s=ENDS, **options)


def a_run(failures_s, **changes):
    costs = FailureCosts(**{"between_failures_s": 50, "save_s": 4, "restart_s": 5} | changes)
    return simulate_run(costs, work_s=30, interval_s=10, failures_s=failures_s)


def bars(axes):
    """Start, end, colour and whether it is hatched, of every bar."""
    for each in axes.collections:
        box = each.get_paths()[0].get_extents()
        yield box.x0, box.x1, tuple(each.get_facecolor()[0]), bool(each.get_hatch())


def test_the_curve_is_the_closed_form_from_end_to_end():
    x, y = drawn().lines[0].get_data()
    assert (x[0] * 60, x[-1] * 60) == pytest.approx(ENDS)
    for place in (0, 50, 120):
        assert y[place] == pytest.approx(100 * expected_goodput(COSTS, x[place] * 60))


def test_marks_stand_at_the_two_formulas_and_say_their_minutes():
    axes = drawn()
    for line, formula in zip(axes.lines[1:], (young_interval_s, daly_interval_s), strict=True):
        interval_s = formula(60, 10_800)
        assert line.get_xdata() == pytest.approx([interval_s / 60])
        assert line.get_ydata() == pytest.approx([100 * expected_goodput(COSTS, interval_s)])
        assert f"{interval_s / 60:.3g} min" in line.get_label()


def test_simulated_runs_are_rings_where_they_were():
    axes = drawn(simulated=[(120, 0.5), (600, 0.8)])
    x, y = axes.lines[1].get_data()
    assert (list(x), list(y)) == ([2, 10], [50, 80])
    assert len(drawn().lines) == len(axes.lines) - 1


def test_title_and_alt_text_say_the_best():
    best = expected_goodput(COSTS, daly_interval_s(60, 10_800))
    assert f"keeps {100 * best:.1f} %" in drawn().get_title()
    told = goodput_alt(COSTS, ENDS)
    assert f"{100 * best:.1f} %" in told
    assert f"At 1 min it is {100 * expected_goodput(COSTS, 60):.1f} %" in told
    assert f"at 240 min {100 * expected_goodput(COSTS, 14_400):.1f} %" in told


def test_every_event_is_a_bar_and_what_was_lost_is_hatched():
    run = a_run([20], hidden=0.5)
    axes = draw_run(style.new_figure(2.4).add_subplot(), run)
    found = list(bars(axes))
    assert [a for a, *_ in found] == pytest.approx([e.start_s for e in run.events])
    assert [b for _, b, *_ in found] == pytest.approx([e.end_s for e in run.events])
    assert [hatched for *_, hatched in found] == [not e.kept for e in run.events]
    colours = {WORK: style.COMPUTE, SAVE: style.COMMUNICATION, WRITE: style.COMMUNICATION}
    for (_, _, colour, hatched), event in zip(found, run.events, strict=True):
        if event.kind in colours and not hatched:
            assert colour == to_rgba(colours[event.kind])


def test_failures_are_marked_and_the_axis_ends_with_the_run():
    run = a_run([20, 23])
    axes = draw_run(style.new_figure(2.4).add_subplot(), run)
    assert list(axes.lines[0].get_xdata()) == [20, 23]
    assert axes.get_xlim() == (0, run.wall_s)
    assert axes.get_xlabel() == "seconds of the run"


def test_a_long_run_has_hours():
    costs = FailureCosts(between_failures_s=1e5, save_s=60)
    run = simulate_run(costs, work_s=35_940, interval_s=1e5, failures_s=())
    axes = draw_run(style.new_figure(2.4).add_subplot(), run)
    assert (axes.get_xlabel(), axes.get_xlim()) == ("hours of the run", (0, 10))


def test_the_legend_names_what_is_drawn_and_no_more():
    def names(run):
        axes = draw_run(style.new_figure(2.4).add_subplot(), run)
        return [text.get_text() for text in axes.get_legend().get_texts()]

    assert names(a_run([])) == ["work", "save"]
    assert names(a_run([20])) == ["work", "save", "restart", "lost to a failure", "failure"]
    assert names(a_run([], hidden=1)) == ["work", "save", "wait for a save"]


def test_the_alt_text_of_a_run_adds_up():
    run = a_run([20])
    assert f"{100 * 30 / 53:.0f} % is work that is kept" in run_alt(run)
    assert f"{100 * 6 / 53:.0f} % work that was lost" in run_alt(run)
    assert "failures: 1." in run_alt(run)
