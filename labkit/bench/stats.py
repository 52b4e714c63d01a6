"""Two functions compared on a noisy machine: interleaved pairs, the median ratio and its interval.

Other work on the machine slows neighbouring calls alike, so each pair is timed back to back, in
alternating order, and only the ratio of a pair is kept. The interval is the 95 % percentile
bootstrap of the median (Efron 1979): resample the pairs with replacement, take the median, cut off
2.5 % at each end.

Cost: 2 × (pairs + warm-up) calls; the bootstrap itself takes milliseconds.
"""

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from labkit.measure.timing import call_time_s

MIN_PAIRS = 20
RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Median of time(a) / time(b) over pairs, with its 95 % bootstrap interval."""

    median: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, a_s: Sequence[float], b_s: Sequence[float], seed: int = 0) -> "Ratio":
        """The ratio of two series of times, where a_s[i] and b_s[i] were taken back to back.

        Raises:
            ValueError: if the lengths differ, or there are fewer than 20 pairs.
        """
        if len(a_s) != len(b_s):
            raise ValueError(f"pairs need two series of one length, got {len(a_s)} and {len(b_s)}")
        if len(a_s) < MIN_PAIRS:
            raise ValueError(f"a ratio needs at least {MIN_PAIRS} pairs, got {len(a_s)}")
        ratios = [a / b for a, b in zip(a_s, b_s, strict=True)]
        generator = random.Random(seed)
        medians = sorted(
            statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
        )
        low, high = medians[RESAMPLES // 40], medians[-1 - RESAMPLES // 40]
        return cls(median=statistics.median(ratios), low=low, high=high, pairs=len(ratios))

    def meets(self, bound: float) -> bool:
        """Whether the lower end of the interval is at or under the bound."""
        return self.low <= bound

    def __str__(self) -> str:
        return f"× {self.median:.3f} [{self.low:.3f}, {self.high:.3f}] of {self.pairs} pairs"


def interleaved(
    a: Callable[[], object],
    b: Callable[[], object],
    pairs: int = MIN_PAIRS,
    *,
    warmup: int = 3,
    seed: int = 0,
    clock: Callable[[Callable[[], object]], float] = call_time_s,
) -> Ratio:
    """Time a and b in pairs, a first in the even ones and b first in the odd ones.

    The order depends on the pair's number alone, so all ranks of a group may call this together.

    Args:
        a: the function under test.
        b: what it is compared with.
        pairs: how many pairs count, at least 20.
        warmup: calls of each function before the first pair.
        seed: of the bootstrap.
        clock: returns the seconds that one call takes.

    Raises:
        ValueError: if pairs < 20, before anything runs.
    """
    if pairs < MIN_PAIRS:
        raise ValueError(f"a ratio needs at least {MIN_PAIRS} pairs, got {pairs}")
    for _ in range(warmup):
        a()
        b()
    a_s, b_s = [], []
    for pair in range(pairs):
        if pair % 2 == 0:
            a_s.append(clock(a))
            b_s.append(clock(b))
        else:
            b_s.append(clock(b))
            a_s.append(clock(a))
    return Ratio.of(a_s, b_s, seed)


def compare(
    name: str,
    a: Callable[[], object],
    b: Callable[[], object],
    *,
    bound: float | None = None,
    pairs: int = MIN_PAIRS,
) -> Ratio:
    """Time a against b and print one row: name, ratio, interval and, given a bound, the verdict."""
    ratio = interleaved(a, b, pairs)
    print(row(name, ratio, bound))
    return ratio


def row(name: str, ratio: Ratio, bound: float | None = None) -> str:
    """One line of a benchmark's table."""
    verdict = ""
    if bound is not None:
        verdict = f"  bound {bound:.2f} {'met' if ratio.meets(bound) else 'MISSED'}"
    return f"{name:<40} {ratio}{verdict}"
