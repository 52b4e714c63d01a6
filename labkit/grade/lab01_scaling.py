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

CLOSE = 0.02  # relative; a grid of exponents 0.02 apart is within 0.01 on these laws
SAME = 1e-6
TIMEOUT_S = 15.0  # of six fits at most
ENDLESS = (1e40, 1e40)

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
        return f"{self.sizes} of up to {largest:.3g} parameters"


SETS = (
    Set(
        sizes="six runs",
        law=ScalingLaw(E=1.0, A=80.0, B=90.0, alpha=0.42, beta=0.3),
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

# book/results/scaling.json: parameters outside of the embeddings, tokens, bits a byte held out.
RECORDS: tuple[Record, ...] = (
    (23200, 3276800, 2.7833),
    (184896, 819200, 3.2619),
    (923008, 819200, 3.0466),
    (74064, 3276800, 2.6438),
    (394080, 1638400, 2.7555),
    (1660960, 819200, 3.0152),
    (184896, 3276800, 2.5438),
    (923008, 1638400, 2.6669),
)
MINI: Record = (5640448, 3276800, 2.28)
MINI_CLOSE = 0.07  # relative: fits of all five numbers are 3 to 6 % too low


def predict_all(
    group: dist.ProcessGroup, learner: Callable, asked: Sequence[tuple]
) -> list[tuple[Any, bool]]:
    """On one rank: the learner's prediction for every question; whether it left the records."""
    answers = []
    for records, size, tokens in asked:
        own = list(records)
        answers.append((learner(own, size, tokens), own == list(records)))
    return answers


def check_predict_loss(learner: Learner) -> Iterator[str]:
    """The loss of a run that is larger than all records."""
    first, *others = SETS
    asked = [(first.records, size, tokens) for size, tokens in _around(first)]
    asked.append((others[0].records, first.size, first.tokens))
    numbers = _predicted(learner, asked)
    for (size, tokens), got in zip(_around(first)[:-1], numbers, strict=False):
        _judge(first, size, tokens, got, numbers)
    if isclose(numbers[0], numbers[-1], rel_tol=SAME):
        raise CheckFailed("lab01.predict_loss.remembers", first=numbers[0])
    asked = [(one.records, one.size, one.tokens) for one in (*others, first)]
    asked.append((list(RECORDS), *MINI[:2]))
    *answers, mini = _predicted(learner, asked)
    for one, got in zip(others, answers, strict=False):
        _judge(one, one.size, one.tokens, got, [])
    if not isclose(answers[-1], numbers[0], rel_tol=SAME):
        raise CheckFailed("lab01.predict_loss.remembers", first=numbers[0])
    if not isclose(mini, MINI[2], rel_tol=MINI_CLOSE):
        raise CheckFailed("lab01.predict_loss.mini", expected=MINI[2], got=f"{mini:.4g}")
    yield from ("size", "text", "floor", "larger", "mini")


def _around(one: Set) -> list[tuple[float, float]]:
    """The run that is asked for, four times its size, four times its text, and without end."""
    size, tokens = one.size, one.tokens
    return [(size, tokens), (4 * size, tokens), (size, 4 * tokens), ENDLESS]


def _predicted(learner: Learner, asked: Sequence[tuple]) -> list[float]:
    answers = learner.run(predict_all, 1, asked, timeout=TIMEOUT_S)[0]
    for (got, untouched), question in zip(answers, asked, strict=True):
        if isinstance(got, bool) or not isinstance(got, (int, float)):
            raise CheckFailed("run.type", expected="a number", got=type(got).__name__)
        if not untouched:
            raise CheckFailed("lab01.predict_loss.input", records=len(question[0]))
    return [got for got, _ in answers]


def _judge(one: Set, size: float, tokens: float, got: float, numbers: Sequence[float]) -> None:
    expected = one.law.loss(size, tokens)
    if not (isfinite(got) and isclose(got, expected, rel_tol=CLOSE)):
        told = {"set": one, "expected": f"{expected:.4g}", "got": f"{got:.4g}"}
        told |= {"size": f"{size:.3g}", "tokens": f"{tokens:.3g}"}
        cause = _cause(one, numbers) if numbers else "values"
        raise CheckFailed(f"lab01.predict_loss.{cause}", **told)


def _cause(one: Set, numbers: Sequence[float]) -> str:
    """The likeliest mistake, by how the predictions behave: the end of a message's key."""
    asked, larger, longer, endless, of_other_records = numbers
    if isclose(asked, of_other_records, rel_tol=SAME):
        return "records"
    of_size, of_text = (not isclose(asked, other, rel_tol=SAME) for other in (larger, longer))
    if not (of_size and of_text):
        return "size_alone" if of_size else "text_alone" if of_text else "constant"
    if not all(map(isfinite, numbers)):
        return "values"
    if larger > asked or longer > asked:
        return "rises"
    if endless < 0:
        return "negative"
    return "no_floor" if endless < one.law.E / 10 else "values"
