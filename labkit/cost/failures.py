"""A run that fails, on a virtual clock: what it worked, saved, lost and did again.

The rules, in the order in which they bite:

* work goes on in intervals, the last one maybe shorter; each ends with a save
* a save blocks, then writes on while the next interval runs; it counts once all is written
* one save is written at a time: the next one waits for it
* a failure throws away all that came after the last save that counts, and starts a restart
* a failure in a restart starts it again
* the run ends when the save of its last interval counts

No wall clock and no state: the same times of failures give the same run. They come from a list, or
from `random_failures`, whose gaps are exponential: a world with many devices, each of which fails
rarely and on its own.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from labkit.cost.goodput import FailureCosts, check_over_zero

WORK, SAVE, WRITE, WAIT, RESTART = "work", "save", "write", "wait", "restart"
MOST_FAILURES = 100_000  # of one run; after so many it will not end


class Event(NamedTuple):
    """A piece of a run.

    Args:
        kind: WORK, SAVE (its part that blocks), WRITE (its part behind work), WAIT, RESTART.
        kept: False for what a failure made worthless or cut short.
    """

    kind: str
    start_s: float
    end_s: float
    kept: bool


@dataclass(frozen=True, kw_only=True)
class Run:
    """The record of a run. All events but WRITE lie end to end from 0 to wall_s."""

    work_s: float
    wall_s: float
    events: tuple[Event, ...]
    failures_s: tuple[float, ...]

    @property
    def goodput(self) -> float:
        """Share of the time that made kept progress."""
        return self.work_s / self.wall_s

    def seconds(self, kind: str, *, kept: bool) -> float:
        """All time of a kind, kept or not."""
        return math.fsum(
            e.end_s - e.start_s for e in self.events if (e.kind, e.kept) == (kind, kept)
        )


def random_failures(between_failures_s: float, seed: int) -> Iterator[float]:
    """Endless growing times with exponential gaps; none if the mean gap is math.inf."""
    check_over_zero("between_failures_s", between_failures_s)
    if math.isinf(between_failures_s):
        return
    random, now = Random(seed), 0.0
    while True:
        now += random.expovariate(1 / between_failures_s)
        yield now


def simulate_run(
    costs: FailureCosts, *, work_s: float, interval_s: float, failures_s: Iterable[float]
) -> Run:
    """One run to its end.

    Args:
        costs: of them, save_s, hidden and restart_s count here.
        work_s: that the run needs without saves and failures.
        interval_s: work between two saves.
        failures_s: growing times on the clock of the run, over 0; may be endless.

    Raises:
        ValueError: if a time does not grow, or the run has not ended after MOST_FAILURES.
    """
    check_over_zero("work_s", work_s)
    check_over_zero("interval_s", interval_s)
    goals = _goals(work_s, interval_s)
    times = _growing(failures_s)
    events: list[Event] = []
    failed: list[float] = []
    now, kept, failure = 0.0, 0, next(times, math.inf)
    while True:
        phases = list(_until(failure, _phases(costs, goals, kept, now)))
        counting = [p.goal for p in phases if p.kind == WRITE and p.end_s <= failure]
        kept = counting[-1] if counting else kept
        events += [Event(p.kind, p.start_s, min(p.end_s, failure), p.goal <= kept) for p in phases]
        if kept == len(goals) - 1:
            break
        now, failure = _restart(costs.restart_s, failure, times, events, failed)
    return Run(
        work_s=work_s,
        wall_s=phases[-1].end_s,
        events=tuple(e for e in events if e.end_s > e.start_s),
        failures_s=tuple(failed),
    )


class _Phase(NamedTuple):
    """What happens if nothing fails; `goal` is the place in the goals that it works for."""

    kind: str
    start_s: float
    end_s: float
    goal: int


def _goals(work_s: float, interval_s: float) -> list[float]:
    """Work done at the start and at each save."""
    num_intervals = math.ceil(work_s / interval_s * (1 - 1e-12))
    return [*(index * interval_s for index in range(num_intervals)), work_s]


def _phases(costs: FailureCosts, goals: Sequence[float], kept: int, now: float) -> Iterator[_Phase]:
    """From a restart with `kept` saves to the end, by start."""
    written = now
    for goal in range(kept + 1, len(goals)):
        done = now + goals[goal] - goals[goal - 1]
        free, saved = max(done, written), max(done, written) + costs.blocking_s
        written = saved + costs.hidden_s
        yield _Phase(WORK, now, done, goal)
        if free > done:
            yield _Phase(WAIT, done, free, goal)
        yield _Phase(SAVE, free, saved, goal)
        yield _Phase(WRITE, saved, written, goal)
        now = saved
    if written > now:
        yield _Phase(WAIT, now, written, len(goals) - 1)


def _until(failure: float, phases: Iterable[_Phase]) -> Iterator[_Phase]:
    """Those that begin before a failure, or end with it."""
    for phase in phases:
        if phase.start_s >= failure and phase.end_s > failure:
            return
        yield phase


def _restart(
    restart_s: float,
    failure: float,
    times: Iterator[float],
    events: list[Event],
    failed: list[float],
) -> tuple[float, float]:
    """Restart after a failure until no other one cuts it: the time after it, the next failure."""
    while True:
        failed.append(failure)
        start, end = failure, failure + restart_s
        failure = next(times, math.inf)
        events.append(Event(RESTART, start, min(end, failure), end <= failure))
        if end <= failure:
            return end, failure


def _growing(times: Iterable[float]) -> Iterator[float]:
    """The times, checked one by one as the run meets them."""
    last = 0.0
    for count, each in enumerate(times):
        if not each > last:
            raise ValueError(f"a failure at {each} s after {last} s; times must grow from 0 on")
        if count > MOST_FAILURES:
            raise ValueError(
                f"{MOST_FAILURES} failures, one in {last / count:g} s, and no end; shorten the "
                "interval, the save or the restart"
            )
        yield each
        last = each
