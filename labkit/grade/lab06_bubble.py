"""Lab 06: the checks of the two bubbles: shares of a step in which a rank does not compute.

bubble_fraction is compared with real runs: GPipe and 1F1B ran on up to four ranks, on equal stages,
and their logs are replayed on links that cost nothing. There both have (p − 1)/(m + p − 1). Larger
pipelines are played in virtual time.

bubble_at_equal_memory is compared with virtual time alone. GPipe that may hold k micro-batches
needs ⌈m/k⌉ rounds, and each round fills and empties the pipeline: it is played round after round.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from math import ceil
from typing import Any

import torch.distributed as dist

from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab06_bubble_ranks import CASES, FORWARD_FLOPS, MAKE, record_steps
from labkit.launch import run_ranks
from labkit.measure.fabric import Fabric, replay
from labkit.parallel.pipeline import gpipe, one_f_one_b, simulate_schedule

CLOSE = 1e-3  # relative; replays are exact
LARGER = ((8, 64), (16, 4), (1, 3), (64, 512))
# (p, m, held), held at least p: one round is enough, several equal ones, a last one that is shorter
MEMORIES = ((4, 8, 8), (4, 16, 4), (4, 24, 6), (4, 10, 4), (2, 7, 3), (3, 2, 3), (1, 9, 4))


def run_bubbles(group: dist.ProcessGroup, learner: Any, asked: Sequence[tuple]) -> list[Any]:
    """On one rank: the learner's number for every question."""
    return [learner(*question) for question in asked]


def check_bubble_fraction(learner: Learner) -> Iterator[str]:
    """The share of the step, of both schedules."""
    asked = [*CASES, *LARGER]
    answers = learner.run(run_bubbles, 1, asked)[0]
    for (p, m), got in zip(asked, answers, strict=True):
        expected = replayed("1f1b", p, m) if (p, m) in CASES else played(p, m)
        causes = {
            "ideal": (p - 1) / m,
            "percent": 100 * expected,
            "working": 1 - expected,
            "one_more": p / (m + p),
            "one_less": (p - 1) / (m + p),
        }
        told = {"stages": p, "micro_batches": m}
        _close("lab06.bubble_fraction", got, expected, causes, told)
    yield from ("share", "replay", "larger")


def check_bubble_at_equal_memory(learner: Learner) -> Iterator[str]:
    """What a schedule's memory does to its bubble."""
    asked = [(name, *question) for question in MEMORIES for name in MAKE]
    answers = learner.run(run_bubbles, 1, asked)[0]
    for (name, p, m, most), got in zip(asked, answers, strict=True):
        expected = in_rounds(name, p, m, most)
        whole, rounds, one_round = (p - 1) / (m + p - 1), ceil(m / most), min(m, most)
        causes = {
            "halved": whole / 2,
            "one_flush": whole,
            "in_rounds": in_rounds("gpipe", p, m, most),
            "one_round": (p - 1) / (one_round + p - 1),
            "ideal": (rounds if name == "gpipe" else 1) * (p - 1) / m,
        }
        told = {"schedule": name, "stages": p, "micro_batches": m, "held": most}
        _close("lab06.bubble_at_equal_memory", got, expected, causes, told)
    yield from ("one_round", "rounds", "remainder", "alone")


@cache
def _logs() -> list[dict[tuple[str, int, int], Any]]:
    """By rank; the same whoever is asked, so a process needs them once."""
    return run_ranks(record_steps, max(p for p, _ in CASES), device="cpu", debug=False)


def replayed(name: str, p: int, m: int) -> float:
    """The bubble of a real run, in virtual time, where links cost nothing."""
    logs = [of_rank[name, p, m] for of_rank in _logs()[:p]]
    return replay(logs, Fabric(alpha=0.0, beta=0.0, flops=FORWARD_FLOPS)).bubble


def played(p: int, m: int) -> float:
    """The bubble of 1F1B in virtual time."""
    return simulate_schedule(one_f_one_b(p, m)).bubble_over_step


def in_rounds(name: str, p: int, m: int, most: int) -> float:
    """The bubble of a step in which no rank holds more than `most` micro-batches."""
    if name == "1f1b":
        return played(p, m)
    sizes = [min(most, m - start) for start in range(0, m, most)]
    step_s = sum(simulate_schedule(gpipe(p, size)).makespan_s for size in sizes)
    return 1 - 3 * m / step_s


def _close(
    key: str, got: Any, expected: float, causes: dict[str, float], told: dict[str, Any]
) -> None:
    """Within 0.1 %; the key's end is the likeliest mistake."""
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        raise CheckFailed("run.type", expected="a number", got=type(got).__name__)

    def near(value: float) -> bool:
        return abs(got - value) <= max(CLOSE * abs(value), 1e-9)

    if not near(expected):
        cause = next((name for name, value in causes.items() if near(value)), "values")
        raise CheckFailed(f"{key}.{cause}", expected=f"{expected:.4g}", got=f"{got:.4g}", **told)
