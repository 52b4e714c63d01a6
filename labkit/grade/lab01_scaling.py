"""Lab 01: the check of the scaling law, on records whose law is known and on the course's own.

Records of six to nine runs are computed from laws that the learner does not see, with

    L(N, D) = E + A/N^alpha + B/D^beta

so the right prediction is known. A wrong one is told by how it behaves: does it follow the records,
the size, the text, and what is left of it where both are endless?
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isclose, isfinite
from typing import Any

import torch.distributed as dist

from labkit.cost.scaling_laws import Record, ScalingLaw
from labkit.grade.check import CheckFailed, Learner

CLOSE = 0.01  # relative; a grid of exponents 0.02 apart is within 0.004 on these laws
SAME = 1e-6
TIMEOUT_S = 10.0  # a fit, 20 times
ENDLESS = (1e14, 1e15)

SIZES: dict[str, tuple[tuple[float, float], ...]] = {
    "six runs": (
        *((2e4, 12e6), (7e4, 12e6), (2e5, 3e6)),
        *((4e5, 6e6), (9e5, 3e6), (1.7e6, 4e6)),
    ),
    "nine runs": (
        *((1e6, 1e8), (1e6, 1e9), (1e6, 4e9)),
        *((1e7, 2e8), (1e7, 2e9), (1e7, 4e9), (6e7, 4e8), (6e7, 1e9), (6e7, 4e9)),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Set:
    """Records of a law, and the run that is to be predicted from them."""

    sizes: str
    law: ScalingLaw
    size: float
    tokens: float

    @property
    def records(self) -> list[Record]:
        return [(n, d, self.law.loss(n, d)) for n, d in SIZES[self.sizes]]

    def __str__(self) -> str:
        largest = max(n for n, _ in SIZES[self.sizes])
        return (
            f"{self.sizes} of up to {largest:.3g} parameters, asked for {self.size:.3g} parameters "
            f"and {self.tokens:.3g} tokens"
        )


SETS = (
    Set(
        sizes="six runs",
        law=ScalingLaw(E=1.0, A=30.0, B=60.0, alpha=0.34, beta=0.28),
        size=6e6,
        tokens=24e6,
    ),
    Set(
        sizes="nine runs",
        law=ScalingLaw(E=1.7, A=250.0, B=900.0, alpha=0.37, beta=0.41),
        size=4e8,
        tokens=2e10,
    ),
    Set(
        sizes="six runs",
        law=ScalingLaw(E=0.5, A=8.0, B=900.0, alpha=0.22, beta=0.42),
        size=6e6,
        tokens=6e6,
    ),
    Set(
        sizes="nine runs",
        law=ScalingLaw(E=2.2, A=120.0, B=3000.0, alpha=0.51, beta=0.61),
        size=2e8,
        tokens=1e10,
    ),
)


def predict_all(
    group: dist.ProcessGroup, learner: Callable, asked: Sequence[tuple]
) -> list[tuple[Any, bool]]:
    """On one rank: the learner's prediction for every question, and whether its records are left."""
    answers = []
    for records, size, tokens in asked:
        own = list(records)
        answers.append((learner(own, size, tokens), own == list(records)))
    return answers


def check_predict_loss(learner: Learner) -> Iterator[str]:
    """The loss of a run that is larger than all records."""
    asked = [
        (one.records, size, tokens)
        for one in SETS
        for size, tokens in (
            (one.size, one.tokens),
            (4 * one.size, one.tokens),
            (one.size, 4 * one.tokens),
            ENDLESS,
        )
    ]
    asked += [(SETS[1].records, SETS[0].size, SETS[0].tokens), asked[0]]
    answers = learner.run(predict_all, 1, asked, timeout=TIMEOUT_S)[0]
    for (got, untouched), question in zip(answers, asked, strict=True):
        if isinstance(got, bool) or not isinstance(got, (int, float)):
            raise CheckFailed("run.type", expected="a number", got=type(got).__name__)
        if not untouched:
            raise CheckFailed("lab01.predict_loss.input", records=len(question[0]))
    numbers = [got for got, _ in answers]
    for i, one in enumerate(SETS):
        for (_, size, tokens), got in zip(asked[4 * i : 4 * i + 3], numbers[4 * i :], strict=False):
            expected = one.law.loss(size, tokens)
            if not (isfinite(got) and isclose(got, expected, rel_tol=CLOSE)):
                shown = {"set": one, "expected": f"{expected:.4g}", "got": f"{got:.4g}"}
                shown |= {"size": f"{size:.3g}", "tokens": f"{tokens:.3g}"}
                cause = _cause(one, numbers[4 * i : 4 * i + 4], numbers[0], numbers[-2])
                raise CheckFailed(f"lab01.predict_loss.{cause}", **shown)
    if not isclose(numbers[-1], numbers[0], rel_tol=SAME):
        raise CheckFailed("lab01.predict_loss.remembers", first=numbers[0], second=numbers[-1])
    yield from ("size", "text", "floor", "larger")


def _cause(one: Set, numbers: Sequence[float], first: float, of_other_records: float) -> str:
    """The likeliest mistake, by how the predictions behave: the end of a message's key."""
    asked, larger, longer, endless = numbers
    if isclose(first, of_other_records, rel_tol=SAME):
        return "records"
    if isclose(asked, larger, rel_tol=SAME) and isclose(asked, longer, rel_tol=SAME):
        return "constant"
    if isclose(asked, longer, rel_tol=SAME):
        return "size_alone"
    if isclose(asked, larger, rel_tol=SAME):
        return "text_alone"
    if not all(map(isfinite, numbers)):
        return "values"
    if larger > asked or longer > asked:
        return "rises"
    return "no_floor" if endless < one.law.E / 2 else "values"
