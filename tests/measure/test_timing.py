"""Timing: number of calls, order statistics, which clock. Oracle: a clock that the test turns."""

import pytest
import torch

from labkit.measure import timing
from labkit.measure.timing import measure


@pytest.fixture
def clock(monkeypatch):
    """A list of call durations; each call takes the next one."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    return now


def test_median_and_quartiles_of_the_repeats_alone(clock):
    durations = iter([1000.0, 1000.0, 5.0, 1.0, 3.0, 2.0, 4.0])

    def work():
        clock[0] += next(durations)

    result = measure(work, repeats=5, warmup=2)
    assert result.samples_s == (5, 1, 3, 2, 4)
    assert (result.low_s, result.median_s, result.high_s) == (2, 3, 4)
    assert str(result) == "3.000e+00 s (2.000e+00 to 4.000e+00)"


def test_an_even_number_of_repeats_takes_the_middle(clock):
    durations = iter([1.0, 2.0])

    def work():
        clock[0] += next(durations)

    result = measure(work, repeats=2, warmup=0)
    assert (result.low_s, result.median_s, result.high_s) == (1.25, 1.5, 1.75)


def test_one_repeat_is_its_own_median():
    result = measure(lambda: None, repeats=1)
    assert result.low_s == result.median_s == result.high_s == result.samples_s[0] >= 0


def test_bad_counts_are_refused():
    with pytest.raises(ValueError, match="got 0 and 3"):
        measure(lambda: None, repeats=0)
    with pytest.raises(ValueError, match="got 1 and -1"):
        measure(lambda: None, repeats=1, warmup=-1)


def test_where_cuda_is_in_use_events_are_read(monkeypatch):
    """On a device that is not there: events around fn, and a wait before they are read."""
    told = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            told.append("record")

        def synchronize(self):
            told.append("wait")

        def elapsed_time(self, end):
            return 2500.0

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("drain"))
    result = measure(lambda: told.append("work"), repeats=1, warmup=0)
    assert told == ["drain", "record", "work", "record", "wait"]
    assert result.median_s == 2.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_long_kernel_is_not_timed_by_its_launch():
    x = torch.randn(4096, 4096, device="cuda")
    seconds = measure(lambda: x @ x, repeats=5).median_s
    assert 2 * 4096**3 / seconds < 1e15  # no device does fp32 products at a PFLOP/s
