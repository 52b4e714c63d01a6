"""Lab 02: the checks of the three prices, against replays of real runs in virtual time.

Ring and tree of labkit.comm.handmade run once, on groups of two to six real ranks. Their logs are
replayed on links of the asked α and β, and a price must lie within 1 % of the replay.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab02_ranks import record_rings_and_trees, run_prices
from labkit.launch import run_ranks
from labkit.measure.fabric import Fabric, replay

SIZES = (4, 2, 5, 3, 6)  # a power of two first: it shows mistakes that all sizes have
LENGTHS = (60, 6000)  # elements of eight bytes; both divide by every size
# (α, β): only latency, only bytes, and both at once; the first failing one says what is wrong.
LINKS = {"latency": (3e-6, 0.0), "bytes": (0.0, 2e-9), "both": (5e-6, 4e-9)}
CROSSING_LINKS = ((5e-6, 1e-9), (1e-6, 1 / 50e9))
CLOSE = 0.01


def check_ring_time_s(learner: Learner) -> Iterator[str]:
    """Seconds of a ring all-reduce."""
    yield from _times(learner, "ring")


def check_tree_time_s(learner: Learner) -> Iterator[str]:
    """Seconds of a binomial tree's reduce and broadcast."""
    yield from _times(learner, "tree")


def _times(learner: Learner, name: str) -> Iterator[str]:
    asked = [(part, size, length) for part in LINKS for size in SIZES for length in LENGTHS]
    questions = [(8 * length, size, *LINKS[part]) for part, size, length in asked]
    alone = [(480, 1, *LINKS["both"])]
    *answers, of_one = learner.run(run_prices, 1, questions + alone)[0]
    for (part, size, length), got in zip(asked, answers, strict=True):
        expected = _replayed(name, size, length, LINKS[part])
        values = {"ranks": size, "payload": 8 * length, "link": _told(LINKS[part])}
        uneven = part == "latency" and size not in (2, 4) and name == "tree"
        _close(f"lab02.{name}_time_s.{'uneven' if uneven else part}", got, expected, **values)
    _close(f"lab02.{name}_time_s.alone", of_one, 0.0, ranks=1)
    yield from ("latency", "bytes", "both", "alone")


def check_crossover_bytes(learner: Learner) -> Iterator[str]:
    """The payload at which ring and tree take equally long: where the replays' difference is 0."""
    asked = [(size, link) for size in (4, 5, 6, 3, 2) for link in CROSSING_LINKS]
    answers = learner.run(run_prices, 1, [(size, *link) for size, link in asked])[0]
    for (size, link), got in zip(asked, answers, strict=True):
        gaps = [
            _replayed("ring", size, length, link) - _replayed("tree", size, length, link)
            for length in LENGTHS
        ]
        slope = (gaps[1] - gaps[0]) / (8 * (LENGTHS[1] - LENGTHS[0]))  # a straight line in S
        expected = 8 * LENGTHS[0] - gaps[0] / slope
        values = {"ranks": size, "link": _told(link)}
        if size <= 3:  # up to three ranks the ring never loses, and rounding leaves no exact 0
            expected = 0.0
            _close("lab02.crossover_bytes.few", got, expected, **values)
        _close("lab02.crossover_bytes.values", got, expected, **values)
    yield from ("crossing", "few_ranks")


@cache
def _logs() -> list[dict[str, Any]]:
    """By rank; the same whoever is asked, so a process needs them once."""
    ranks = max(SIZES)
    return run_ranks(record_rings_and_trees, ranks, SIZES, LENGTHS, device="cpu", debug=False)


def _replayed(name: str, size: int, length: int, link: tuple[float, float]) -> float:
    logs = [logs[f"{name} {size} {length}"] for logs in _logs()]
    alpha, beta = link
    return replay(logs, Fabric(alpha=alpha, beta=beta, flops=1.0)).step_s


def _close(key: str, got: Any, expected: float, **values: Any) -> None:
    """Within 1 %; the smallest part of 0 is 0, so there a nanosecond or byte is let pass."""
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        raise CheckFailed("run.type", expected="a number", got=type(got).__name__)
    if not abs(got - expected) <= max(CLOSE * expected, 1e-9):
        ratio = f"{got / expected:.3g}" if expected else "not defined"
        told = {"expected": f"{expected:.6g}", "got": f"{got:.6g}", "ratio": ratio}
        raise CheckFailed(key, **told, **values)


def _told(link: tuple[float, float]) -> str:
    alpha, beta = link
    return f"α = {alpha:g} s, β = {beta:g} s a byte"
