"""Lab 08: the check of the checkpoint interval, by brute force on the virtual clock.

The parent simulates runs that fail at random (labkit/cost/failures.py) at many intervals, roughly
first and then finely around the best one, and takes the lowest point of a parabola. No formula is
used. Chance moves that point by one or two per cent; an answer may be off by five.

Where a save takes a hundredth of the time between failures, Young's root is within that; where it
takes a tenth, it is not.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch.distributed as dist

from labkit.cost.best_interval import best_interval_s
from labkit.cost.goodput import (
    FailureCosts,
    daly_interval_s,
    llama3_device_between_failures_s,
    young_interval_s,
)
from labkit.grade.check import CheckFailed, Learner

ALLOWED = 0.05
SAME = 1e-3  # relative: two numbers that are one formula's
Question = tuple[int, float, float, float]  # devices, one's seconds between failures, save, restart
ONE_S = llama3_device_between_failures_s()
CASES: tuple[Question, ...] = (
    (4_096, ONE_S, 400.0, 600.0),
    (16_384, ONE_S, 400.0, 600.0),
    (64, 1e7, 3e4, 900.0),
    (8, 8e5, 1e4, 0.0),
)


def run_interval(group: dist.ProcessGroup, learner: Callable, cases: Sequence[Any]) -> list[Any]:
    """On one rank: the learner's interval for every case."""
    return [learner(*case) for case in cases]


def check_checkpoint_interval(learner: Learner) -> Iterator[str]:
    """The work between two saves with which runs end soonest."""
    answers = learner.run(run_interval, 1, CASES)[0]
    for got in answers:
        if isinstance(got, bool) or not isinstance(got, (int, float)):
            raise CheckFailed("run.type", expected="seconds, one number", got=type(got).__name__)
    for case, got in zip(CASES, answers, strict=True):
        expected = brute_force_s(case)
        if not abs(got / expected - 1) <= ALLOWED:
            key = f"lab08.checkpoint_interval.{_cause(case, got, answers)}"
            shown = {"expected": f"{expected:,.1f}", "got": f"{got:,.1f}"}
            told = {
                "devices": case[0],
                "save_s": f"{case[2]:,.0f}",
                "world_s": f"{world_s(case):,.0f}",
            }
            raise CheckFailed(key, **shown, **told)
    yield from ("interval", "devices", "long_saves")


def world_s(case: Question) -> float:
    """Seconds between failures of all devices together."""
    return case[1] / case[0]


@cache
def brute_force_s(case: Question) -> float:
    """The best interval of many simulated runs."""
    _, _, save_s, restart_s = case
    between_s = world_s(case)
    costs = FailureCosts(between_failures_s=between_s, save_s=save_s, restart_s=restart_s)
    rough = [between_s * 2.0**step for step in range(-5, 2)]
    near = best_interval_s(costs, work_s=100 * between_s, candidates_s=rough, seeds=(1,))
    fine = [near * 1.25**step for step in range(-3, 4)]
    return best_interval_s(costs, work_s=300 * between_s, candidates_s=fine, seeds=range(2, 10))


def _cause(case: Question, got: float, answers: Sequence[float]) -> str:
    """The likeliest mistake behind a wrong interval: the end of a message's key."""
    devices, one_s, save_s, restart_s = case
    between_s = world_s(case)
    shares = [answer / world_s(each) for each, answer in zip(CASES, answers, strict=True)]
    if max(answers) - min(answers) <= SAME * max(answers):
        return "constant"
    if max(shares) - min(shares) <= SAME * max(shares):
        return "proportional"
    likely = {
        "young": young_interval_s(save_s, between_s),
        "half": math.sqrt(save_s * between_s),
        "one_device": young_interval_s(save_s, one_s),
        "more_devices": young_interval_s(save_s, one_s * devices),
        "restart": young_interval_s(save_s + restart_s, between_s),
        "period": daly_interval_s(save_s, between_s) + save_s,
        "hours": young_interval_s(save_s, between_s) / 3600,
    }
    more = {
        "one_device": daly_interval_s(save_s, one_s),
        "restart": daly_interval_s(save_s + restart_s, between_s),
        "hours": daly_interval_s(save_s, between_s) / 3600,
    }
    for cause, value in (*likely.items(), *more.items()):
        if abs(got - value) <= SAME * value:
            return cause
    return "short" if got < brute_force_s(case) else "long"
