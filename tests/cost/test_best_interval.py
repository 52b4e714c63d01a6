"""Brute force finds Daly's interval within 5 % where it holds. Oracles: the formula, a parabola."""

import functools
import math

import pytest

from labkit.cost.best_interval import _lowest_point, best_interval_s, mean_goodput
from labkit.cost.goodput import FailureCosts, daly_interval_s, expected_goodput


def costs(**changes):
    return FailureCosts(**{"between_failures_s": 1000, "save_s": 10, "restart_s": 20} | changes)


@functools.cache
def searched(**changes):
    """About 2000 failures for each of 7 intervals around the best."""
    these = costs(**changes)
    middle_s = round(daly_interval_s(these.blocking_s, these.between_failures_s), -1)
    candidates_s = [middle_s * 1.25**step for step in range(-3, 4)]
    work_s = 250 * these.between_failures_s
    return best_interval_s(these, work_s=work_s, candidates_s=candidates_s, seeds=range(6))


@pytest.mark.parametrize("changes", [{}, {"save_s": 40}, {"between_failures_s": 4000}])
def test_brute_force_and_daly_agree(changes):
    these = costs(**changes)
    expected = daly_interval_s(these.blocking_s, these.between_failures_s)
    assert searched(**changes) == pytest.approx(expected, rel=0.05)


def test_four_times_the_time_between_failures_is_twice_the_interval():
    assert searched(between_failures_s=4000) / searched() == pytest.approx(2, rel=0.1)


def test_a_wide_search_needs_no_formula():
    candidates_s = [15 * 2.0**step for step in range(6)]
    best = best_interval_s(costs(), work_s=30_000, candidates_s=candidates_s, seeds=range(8))
    assert 0.8 < best / daly_interval_s(10, 1000) < 1.25


def test_a_run_shorter_than_any_failure_saves_once():
    calm = costs(between_failures_s=math.inf)
    best = best_interval_s(calm, work_s=500, candidates_s=[100, 200, 500], seeds=[0])
    assert best == 500


def test_saves_that_hide_are_made_as_often_as_they_can():
    hidden = costs(save_s=20, hidden=1.0)
    best = best_interval_s(hidden, work_s=50_000, candidates_s=[20, 40, 80], seeds=range(5))
    assert best == 20


def test_mean_goodput_is_work_over_time():
    calm = costs(between_failures_s=math.inf)
    assert mean_goodput(calm, work_s=1000, interval_s=90, seeds=[1, 2]) == 1000 / (1000 + 12 * 10)
    mean = mean_goodput(costs(), work_s=100_000, interval_s=140, seeds=range(10))
    assert mean == pytest.approx(expected_goodput(costs(), 140), rel=0.02)


def test_lowest_point_of_an_exact_parabola_on_uneven_places():
    parabola = {x: 3 * (x - 0.4) ** 2 + 7 for x in (-1.0, -0.3, 0.1, 1.5, 1.6)}
    assert _lowest_point(parabola) == pytest.approx(0.4, abs=1e-12)
    assert _lowest_point({x: -y for x, y in parabola.items()}) is None
    assert _lowest_point({0.0: 1.0, 1.0: 2.0}) is None


def test_nothing_to_choose_from_is_refused():
    with pytest.raises(ValueError, match="0 candidates"):
        best_interval_s(costs(), work_s=100, candidates_s=[], seeds=[0])
    with pytest.raises(ValueError, match="0 seeds"):
        mean_goodput(costs(), work_s=100, interval_s=10, seeds=[])
