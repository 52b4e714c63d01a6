"""Runs on the virtual clock. Oracles: runs worked out by hand, and the closed form over many seeds.

Tolerance of the means: 2 %. 40 runs meet 4000 failures or more, so chance moves the mean by a few
thousandths; a save, a restart or a hidden write left out moves it by 5 % in one of the cases.
"""

import math
from itertools import pairwise

import pytest

from labkit.cost.failures import (
    RESTART,
    SAVE,
    WAIT,
    WORK,
    WRITE,
    Event,
    random_failures,
    simulate_run,
)
from labkit.cost.goodput import FailureCosts, daly_interval_s, expected_goodput


def costs(**changes):
    return FailureCosts(**{"between_failures_s": 1000, "save_s": 4, "restart_s": 5} | changes)


def run(failures_s=(), *, work_s=30, interval_s=10, **changes):
    these = costs(**changes)
    return simulate_run(these, work_s=work_s, interval_s=interval_s, failures_s=failures_s)


def drawn(seeds, *, work_s, interval_s, **changes):
    these = costs(**changes)
    for seed in seeds:
        times = random_failures(these.between_failures_s, seed)
        yield simulate_run(these, work_s=work_s, interval_s=interval_s, failures_s=times)


def test_without_failures_a_run_works_and_saves():
    calm = run()
    kinds = [(WORK, 0, 10), (SAVE, 10, 14), (WORK, 14, 24), (SAVE, 24, 28), (WORK, 28, 38)]
    assert calm.events == tuple(Event(*k, True) for k in [*kinds, (SAVE, 38, 42)])
    assert (calm.wall_s, calm.failures_s, calm.goodput) == (42, (), 30 / 42)


def test_a_failure_loses_the_work_since_the_last_save():
    assert run([20]).events[2:6] == (
        Event(WORK, 14, 20, False),
        Event(RESTART, 20, 25, True),
        Event(WORK, 25, 35, True),
        Event(SAVE, 35, 39, True),
    )
    assert run([20]).wall_s == 42 + 6 + 5


def test_a_save_that_failed_does_not_count():
    short = run([13], work_s=10)
    assert short.events == (
        Event(WORK, 0, 10, False),
        Event(SAVE, 10, 13, False),
        Event(RESTART, 13, 18, True),
        Event(WORK, 18, 28, True),
        Event(SAVE, 28, 32, True),
    )


def test_a_save_that_ends_with_the_failure_counts():
    assert run([14]).wall_s == 42 + 5


def test_a_failure_in_a_restart_starts_it_again():
    twice = run([20, 23])
    assert twice.events[3:5] == (Event(RESTART, 20, 23, False), Event(RESTART, 23, 28, True))
    assert (twice.wall_s, twice.failures_s) == (42 + 6 + 3 + 5, (20, 23))


def test_a_failure_as_the_restart_ends_is_one_of_its_own():
    assert run([20, 25]).wall_s == 42 + 6 + 5 + 5


def test_a_hidden_write_counts_when_all_of_it_is_written():
    """Blocks 1 s of 4: saved at 11, counts at 14."""
    late = run([13], work_s=20, hidden=0.75)
    assert [e for e in late.events if e.start_s < 13] == [
        Event(WORK, 0, 10, False),
        Event(SAVE, 10, 11, False),
        Event(WRITE, 11, 13, False),
        Event(WORK, 11, 13, False),
    ]
    early = run([15], work_s=20, hidden=0.75)
    assert early.seconds(WORK, kept=False) == 4
    assert late.wall_s - early.wall_s == 13 + 5 - (15 + 5) + 11


def test_a_run_ends_when_its_last_write_counts():
    assert run(work_s=10, hidden=0.75).events[-2:] == (
        Event(WRITE, 11, 14, True),
        Event(WAIT, 11, 14, True),
    )


def test_one_save_is_written_at_a_time():
    slow = run(work_s=20, save_s=16, hidden=0.75)
    assert [e for e in slow.events if e.kind in (WAIT, SAVE)] == [
        Event(SAVE, 10, 14, True),
        Event(WAIT, 24, 26, True),
        Event(SAVE, 26, 30, True),
        Event(WAIT, 30, 42, True),
    ]


def test_an_interval_longer_than_the_run_saves_once():
    assert [e.kind for e in run(interval_s=1000).events] == [WORK, SAVE]
    assert run(interval_s=12).wall_s == 30 + 3 * 4


@pytest.mark.parametrize("intervals", [3, 7, 10, 41])
def test_no_tiny_interval_is_left_by_rounding(intervals):
    assert run(work_s=intervals * 0.1, interval_s=0.1).seconds(SAVE, kept=True) == pytest.approx(
        4 * intervals
    )


@pytest.mark.parametrize("hidden", [0, 0.5, 1])
def test_events_lie_end_to_end_and_work_is_kept_once(hidden):
    for each in drawn(range(5), work_s=3000, interval_s=77, between_failures_s=200, hidden=hidden):
        lane = [e for e in each.events if e.kind != WRITE]
        assert all(a.end_s == b.start_s for a, b in pairwise(lane))
        assert (lane[0].start_s, lane[-1].end_s) == (0, each.wall_s)
        assert each.seconds(WORK, kept=True) == pytest.approx(3000, rel=1e-12)
        assert each.failures_s[-1] < each.wall_s


@pytest.mark.parametrize(
    ("interval_s", "changes"),
    [
        (80, {}),
        (400, {}),
        (50, {"save_s": 40, "restart_s": 200}),
        (80, {"save_s": 60, "hidden": 0.8}),
        (60, {"save_s": 60, "hidden": 1.0}),
        (80, {"save_s": 0, "restart_s": 0}),
    ],
)
def test_the_mean_of_many_runs_is_the_closed_form(interval_s, changes):
    runs = list(drawn(range(40), work_s=100_000, interval_s=interval_s, **changes))
    mean = sum(r.work_s for r in runs) / sum(r.wall_s for r in runs)
    assert mean == pytest.approx(expected_goodput(costs(**changes), interval_s), rel=0.02)


def test_the_same_failures_give_the_same_run():
    one, two, other = (next(drawn([s], work_s=9e4, interval_s=80)) for s in (1, 1, 2))
    assert one == two
    assert one != other


def test_random_failures_are_as_frequent_as_asked():
    times = random_failures(250.0, 0)
    last = [next(times) for _ in range(20_000)][-1]
    assert last / 20_000 == pytest.approx(250, rel=0.02)
    assert list(random_failures(math.inf, 0)) == []


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="work_s is 0"):
        run(work_s=0)
    with pytest.raises(ValueError, match="interval_s is -2"):
        run(interval_s=-2)
    with pytest.raises(ValueError, match="failure at 4 s after 20 s"):
        run([20, 4])
    with pytest.raises(ValueError, match=r"failure at 0 s after 0\.0 s"):
        run([0])
    with pytest.raises(ValueError, match="between_failures_s is 0"):
        next(random_failures(0, 1))


@pytest.mark.parametrize("restart_s", [5, 50])
def test_a_run_that_never_ends_is_refused(restart_s):
    with pytest.raises(ValueError, match=r"100000 failures, one in 0.5\d* s, and no end"):
        next(drawn([1], work_s=30, interval_s=10, between_failures_s=0.5, restart_s=restart_s))


def test_dalys_interval_beats_twice_and_half_of_it():
    goodputs = []
    for factor in (0.5, 1, 2):
        interval_s = factor * daly_interval_s(4, 1000)
        runs = drawn(range(20), work_s=50_000, interval_s=interval_s)
        goodputs.append(1 / sum(r.wall_s for r in runs))
    assert max(goodputs) == goodputs[1]
