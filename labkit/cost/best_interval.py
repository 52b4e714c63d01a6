"""The best checkpoint interval by brute force: simulate every candidate, many runs each.

No formula is used, so the answer also holds where formulas do not: saves that wait for each other,
failures that come in groups, a run that ends soon. Its price: the optimum is flat, so an interval
5 % away costs a thousandth of what failures cost, and chance hides that unless thousands of
failures are simulated. Every candidate meets the same failures, and a parabola uses all of them.
"""

import math
from collections.abc import Iterable, Sequence

from labkit.cost.failures import random_failures, simulate_run
from labkit.cost.goodput import FailureCosts


def mean_goodput(
    costs: FailureCosts, *, work_s: float, interval_s: float, seeds: Iterable[int]
) -> float:
    """Of many runs together: their work over their time."""
    walls = [
        simulate_run(
            costs,
            work_s=work_s,
            interval_s=interval_s,
            failures_s=random_failures(costs.between_failures_s, seed),
        ).wall_s
        for seed in seeds
    ]
    if not walls:
        raise ValueError("0 seeds given; a mean needs 1 or more")
    return work_s * len(walls) / math.fsum(walls)


def best_interval_s(
    costs: FailureCosts, *, work_s: float, candidates_s: Sequence[float], seeds: Sequence[int]
) -> float:
    """The interval with which runs end soonest.

    A parabola is laid through the time that runs take, over the logarithm of the interval, at the
    candidates within a factor of 2 of the best one; its lowest point is the answer. If there are
    fewer than 3 of them, or the point is not among them, the best candidate is.

    Args:
        work_s: of each run; the more failures it meets, the less is left to chance.
        candidates_s: intervals, best in even ratios: 60, 90, 135 …
        seeds: one run each.
    """
    if not candidates_s:
        raise ValueError("0 candidates given; the best of them needs 1 or more")
    slowness = {
        each: 1 / mean_goodput(costs, work_s=work_s, interval_s=each, seeds=seeds)
        for each in candidates_s
    }
    best = min(slowness, key=lambda each: slowness[each])
    near = {math.log(s / best): v for s, v in slowness.items() if best / 2 <= s <= 2 * best}
    lowest = _lowest_point(near)
    inside = lowest is not None and min(near) < lowest < max(near)
    return best * math.exp(lowest) if lowest is not None and inside else best


def _lowest_point(points: dict[float, float]) -> float | None:
    """Where the parabola nearest to points (x: y) is lowest; None if it is nowhere so.

    With t = x - mean(x), it is y = a + b·t + c·(t² - s·t - mean(t²)), s = sum(t³) / sum(t²): three
    terms whose products sum to 0, so each coefficient is found by itself.
    """
    if len(points) < 3:
        return None
    mean = math.fsum(points) / len(points)
    shifted = [x - mean for x in points]
    squares = math.fsum(t**2 for t in shifted)
    skew = math.fsum(t**3 for t in shifted) / squares
    bowl = [t**2 - skew * t - squares / len(points) for t in shifted]
    slope = math.fsum(t * y for t, y in zip(shifted, points.values(), strict=True)) / squares
    bend = math.fsum(u * y for u, y in zip(bowl, points.values(), strict=True))
    bend /= math.fsum(u**2 for u in bowl)
    return mean + (skew - slope / bend) / 2 if bend > 0 else None
