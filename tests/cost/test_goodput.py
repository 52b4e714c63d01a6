"""The closed form of goodput and its best interval. Oracles: limits, a search, printed figures.

That the closed form tells the truth about runs is tested in test_failures.py.
"""

import math

import pytest

from labkit.cost.goodput import (
    LLAMA3_GPUS,
    FailureCosts,
    daly_interval_s,
    device_between_failures_s,
    expected_goodput,
    llama3_device_between_failures_s,
    world_between_failures_s,
    young_interval_s,
)

HOUR = 3600.0


def costs(**changes):
    return FailureCosts(
        **{"between_failures_s": 3 * HOUR, "save_s": 60, "restart_s": 600} | changes
    )


def searched_interval_s(these):
    """The best interval of the closed form, by halving a bracket in steps of the golden ratio."""
    low, high = 1e-3, 10 * these.between_failures_s
    for _ in range(200):
        a, b = high - 0.618 * (high - low), low + 0.618 * (high - low)
        if expected_goodput(these, a) > expected_goodput(these, b):
            high = b
        else:
            low = a
    return (low + high) / 2


def test_llama3_met_a_failure_every_3_1_hours():
    device_s = llama3_device_between_failures_s()
    assert world_between_failures_s(device_s, LLAMA3_GPUS) / HOUR == pytest.approx(3.1, abs=0.05)
    assert device_s / HOUR / 24 / 365 == pytest.approx(5.8, abs=0.05)


def test_a_world_fails_as_often_as_it_has_devices():
    assert world_between_failures_s(1000.0, 8) == 125
    assert device_between_failures_s(4, 500.0, 8) == 1000
    assert world_between_failures_s(math.inf, 8) == math.inf


@pytest.mark.parametrize("save_s", [1, 10, 60, 300, 1000, 3000, 5400])
def test_daly_is_near_the_best_of_the_closed_form(save_s):
    these = costs(save_s=save_s)
    best = searched_interval_s(these)
    assert daly_interval_s(save_s, 3 * HOUR) == pytest.approx(best, rel=0.02)


def test_young_is_near_the_best_for_short_saves_only():
    assert young_interval_s(1, 3 * HOUR) == pytest.approx(
        searched_interval_s(costs(save_s=1)), rel=0.01
    )
    assert young_interval_s(3000, 3 * HOUR) > 1.3 * searched_interval_s(costs(save_s=3000))


def test_daly_ends_at_the_time_between_failures():
    assert daly_interval_s(200, 100) == daly_interval_s(300, 100) == 100
    assert daly_interval_s(199, 100) == pytest.approx(88, abs=1)


def test_the_best_interval_grows_with_the_root_of_the_time_between_failures():
    for interval_s in (young_interval_s, daly_interval_s):
        assert interval_s(5, 4e5) / interval_s(5, 1e5) == pytest.approx(2, rel=0.01)


def test_the_best_interval_depends_on_what_blocks_alone():
    blocking = searched_interval_s(costs(save_s=60))
    assert searched_interval_s(costs(save_s=60, restart_s=0)) == pytest.approx(blocking, rel=1e-3)
    hidden = costs(save_s=240, hidden=0.75)
    assert (hidden.blocking_s, hidden.hidden_s) == (60, 180)
    around = [blocking * step for step in (0.95, 1, 1.05)]
    assert max(around, key=lambda each: expected_goodput(hidden, each)) == around[1]


def test_first_order():
    """Young's reasoning: a save an interval, and half an interval, save and restart a failure."""
    these = costs(between_failures_s=1e6, save_s=10, restart_s=50)
    interval_s = 5000
    lost = 10 / interval_s + (interval_s / 2 + 50) / 1e6
    assert 1 - expected_goodput(these, interval_s) == pytest.approx(lost, rel=0.02)


def test_without_failures_only_saves_cost():
    never = costs(between_failures_s=math.inf)
    assert expected_goodput(never, 540) == 0.9
    rarely = costs(between_failures_s=1e12)
    assert expected_goodput(rarely, 540) == pytest.approx(0.9, rel=1e-6)


def test_saves_for_nothing_cost_nothing_and_are_made_all_the_time():
    free = costs(save_s=0, restart_s=0)
    assert young_interval_s(0, 3 * HOUR) == daly_interval_s(0, 3 * HOUR) == 0
    assert expected_goodput(free, 1e-3) == pytest.approx(1, abs=1e-6)


def test_a_hidden_save_is_a_longer_restart():
    hidden = costs(save_s=100, hidden=0.8, restart_s=600)
    assert expected_goodput(hidden, 900) == expected_goodput(costs(save_s=20, restart_s=680), 900)
    assert expected_goodput(hidden, 900) > expected_goodput(costs(save_s=100), 900)


def test_an_interval_far_over_the_time_between_failures_reaches_nothing():
    assert expected_goodput(costs(between_failures_s=1), 1e6) == 0


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("between_failures_s", 0, "between_failures_s is 0; it must be over 0"),
        ("between_failures_s", math.nan, "between_failures_s is nan"),
        ("save_s", -1, "save_s is -1; it must be a number of seconds from 0 on"),
        ("restart_s", math.inf, "restart_s is inf"),
        ("hidden", 1.5, "hidden is 1.5; it is a share from 0 to 1"),
    ],
)
def test_costs_that_cannot_be_are_refused(name, value, text):
    with pytest.raises(ValueError, match=text):
        costs(**{name: value})


def test_calls_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="interval_s is 0; it must be over 0"):
        expected_goodput(costs(), 0)
    with pytest.raises(ValueError, match=r"80 s of a save .* an interval of 70 s"):
        expected_goodput(costs(save_s=100, hidden=0.8), 70)
    with pytest.raises(ValueError, match="num_devices is 0"):
        world_between_failures_s(100.0, 0)
    with pytest.raises(ValueError, match="num_failures is 0"):
        device_between_failures_s(0, 100.0, 4)
    with pytest.raises(ValueError, match="blocking_s is -3"):
        young_interval_s(-3, 100)
    with pytest.raises(ValueError, match="between_failures_s is -100"):
        daly_interval_s(3, -100)
