"""Interleaved comparison. Oracles: clocks that the test turns; coverage of made-up noise."""

import random
import statistics

import pytest

from labkit.bench.stats import Ratio, compare, interleaved, row


def fake_clock(seconds):
    """A clock for functions that return their own duration."""
    return lambda fn: seconds(fn())


def test_pairs_alternate_and_warm_up_does_not_count():
    calls, timed = [], []
    ratio = interleaved(
        lambda: calls.append("a"),
        lambda: calls.append("b"),
        20,
        warmup=2,
        clock=lambda fn: timed.append(fn()) or 1.0,
    )
    assert calls == ["a", "b"] * 2 + ["a", "b", "b", "a"] * 10
    assert len(timed) == 40
    assert (ratio.median, ratio.low, ratio.high, ratio.pairs) == (1, 1, 1, 20)


def test_a_slow_spell_hits_both_sides_of_a_pair():
    """The machine is ten times slower for half of the run: the ratio does not move."""
    calls = [0]

    def seconds(duration):
        calls[0] += 1
        return duration * (10 if calls[0] > 20 else 1)

    ratio = interleaved(lambda: 3.0, lambda: 2.0, warmup=0, clock=fake_clock(seconds))
    assert ratio.low == ratio.median == ratio.high == 1.5


def test_who_goes_second_gains_nothing_over_the_pairs():
    """Every second call is 10 % slower: a median over alternating order stays in between."""
    calls = [0]

    def seconds(duration):
        calls[0] += 1
        return duration * (1.1 if calls[0] % 2 == 0 else 1.0)

    ratio = interleaved(lambda: 1.0, lambda: 1.0, warmup=0, clock=fake_clock(seconds))
    assert ratio.median == pytest.approx((1.1 + 1 / 1.1) / 2)
    assert ratio.low < 1 < ratio.high


def test_the_interval_covers_the_true_ratio_about_95_times_in_100():
    generator = random.Random(0)
    covered = 0
    for trial in range(100):  # a bootstrap takes about 10 ms
        a = [1.2 * generator.lognormvariate(0, 0.1) for _ in range(20)]
        b = [generator.lognormvariate(0, 0.1) for _ in range(20)]
        ratio = Ratio.of(a, b, seed=trial)
        assert ratio.low <= ratio.median <= ratio.high
        covered += ratio.low <= 1.2 <= ratio.high
    assert 88 <= covered <= 100  # a median of 20 is covered a little under 95 % by the bootstrap


def test_one_outlier_moves_neither_median_nor_interval_far():
    a = [1.0 + 0.001 * i for i in range(19)]
    ratio = Ratio.of([*a, 1000.0], [1.0] * 20)
    assert ratio.median == statistics.median([*a, 1000.0])
    assert ratio.high < 1.02


def test_same_seed_same_interval():
    generator = random.Random(1)
    a, b = ([generator.random() + 1 for _ in range(20)] for _ in range(2))
    assert Ratio.of(a, b, seed=3) == Ratio.of(a, b, seed=3)


@pytest.mark.parametrize(("bound", "met"), [(0.99, False), (1.0, True), (1.1, True)])
def test_a_bound_is_met_at_or_above_the_lower_end(bound, met):
    ratio = Ratio(median=1.2, low=1.0, high=1.4, pairs=20)
    assert ratio.meets(bound) is met
    assert ("MISSED" in row("ring", ratio, bound)) is not met


def test_a_row_is_printed(capsys):
    ratio = compare("ring against library", lambda: None, lambda: None, bound=1e9)
    line = capsys.readouterr().out
    assert line.startswith("ring against library")
    assert line.rstrip().endswith("met")
    assert str(ratio) in line


def test_too_few_pairs_or_uneven_series_are_refused():
    ran = []
    with pytest.raises(ValueError, match="at least 20 pairs, got 5"):
        interleaved(lambda: ran.append(1), lambda: ran.append(1), 5)
    assert ran == []
    with pytest.raises(ValueError, match="at least 20 pairs, got 19"):
        Ratio.of([1.0] * 19, [1.0] * 19)
    with pytest.raises(ValueError, match="got 20 and 21"):
        Ratio.of([1.0] * 20, [1.0] * 21)
