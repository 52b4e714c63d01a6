"""How long a function takes: warm up, repeat, report the median and the spread.

One sample is one call. On a CPU the clock is perf_counter. Where CUDA is in use, work is queued, so
a sample is the time between two CUDA events on the current stream, read after both have passed.

A single number says little on a shared machine: compare two functions with `labkit.bench.stats`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Samples of one function in seconds: the median, and the quartiles as spread."""

    median_s: float
    low_s: float
    high_s: float
    samples_s: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.median_s:.3e} s ({self.low_s:.3e} to {self.high_s:.3e})"


def measure(fn: Callable[[], object], repeats: int = 20, warmup: int = 3) -> Timing:
    """Time `repeats` calls of fn after `warmup` calls that do not count.

    Raises:
        ValueError: if repeats < 1 or warmup < 0.
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"needs repeats ≥ 1 and warmup ≥ 0, got {repeats} and {warmup}")
    for _ in range(warmup):
        fn()
    samples = [call_time_s(fn) for _ in range(repeats)]
    low, median, high = (_quantile(samples, share) for share in (0.25, 0.5, 0.75))
    return Timing(median_s=median, low_s=low, high_s=high, samples_s=tuple(samples))


def call_time_s(fn: Callable[[], object]) -> float:
    """Seconds that one call of fn takes, on the device that is in use."""
    if torch.cuda.is_initialized():
        return _cuda_call_time_s(fn)
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def _cuda_call_time_s(fn: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()  # earlier work must not stand between the two events
    start.record()
    fn()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3  # milliseconds


def _quantile(samples: list[float], share: float) -> float:
    """Linear interpolation between the two nearest samples."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
