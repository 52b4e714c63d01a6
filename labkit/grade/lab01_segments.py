"""Lab 01: the check of the choice of segments under a byte budget, against all choices there are.

Layers are cut into segments. All but the last keep their input only and run again in backward; the
last is at work when backward begins, so it runs plainly. While backward is in segment j, counted
from 1, the inputs of the j − 1 segments before it are held, and all that its own layers keep, its
own input among it:

    peak = max over j of (j − 1)·boundary + sum of the layers' bytes of segment j

Every layer but those of the last segment runs a second time. The oracle tries all 2^(L−1) ways.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import torch.distributed as dist

from labkit.grade.check import CheckFailed, Learner

SEED, NUM_RANDOM = 11, 40
Question = tuple[list[int], int, int]  # bytes of each layer, bytes of a boundary, budget


def cases() -> list[Question]:
    """Equal layers, unequal ones, one layer, budgets met exactly, and some that nothing fits."""
    equal = [[10] * 8, [10] * 12, [7] * 5, [9]]
    found: list[Question] = [
        *((equal[0], 2, budget) for budget in (85, 80, 44, 32, 26, 24, 23, 21, 17)),
        *((equal[1], 1, budget) for budget in (120, 61, 60, 45, 40, 38)),
        *((equal[2], 7, budget) for budget in (35, 34, 28, 27, 7)),
        (equal[3], 4, 9),
        (equal[3], 4, 8),
        ([30, 10, 10, 10, 10, 10], 3, 45),
        ([10, 10, 10, 10, 10, 30], 3, 45),
    ]
    rng = random.Random(SEED)
    for _ in range(NUM_RANDOM):
        layers = [rng.randrange(5, 30) for _ in range(rng.randrange(2, 10))]
        boundary = rng.randrange(1, 6)
        low = max(layers)
        found.append((layers, boundary, rng.randrange(low, sum(layers) + boundary)))
    return [*found, found[0]]


def choose_all(
    group: dist.ProcessGroup, learner: Callable, asked: Sequence[Question]
) -> list[tuple[Any, list[int]]]:
    """On one rank: the learner's choice for every case, and its list of bytes as it is then."""
    answers = []
    for layer_bytes, boundary, budget in asked:
        own = list(layer_bytes)
        answers.append((learner(own, boundary, budget), own))
    return answers


def check_choose_segments(learner: Learner) -> Iterator[str]:
    """Within the budget, and no layer run again without need."""
    asked = cases()
    answers = learner.run(choose_all, 1, asked)[0]
    for (layers, boundary, budget), (got, own) in zip(asked, answers, strict=True):
        told = {"layers": layers, "boundary": boundary, "budget": budget, "got": got}
        if own != layers:
            raise CheckFailed("lab01.choose_segments.input", after=own, **told)
        least = fewest_again(layers, boundary, budget)
        if got is None and least is None:
            continue
        if got is None:
            raise CheckFailed("lab01.choose_segments.gave_up", again=least, **told)
        _judge_form(got, layers, told)
        _judge_peak(got, layers, boundary, budget, told, least is None)
        again = len(layers) - got[-1]
        if least is not None and again > least:
            if again == fewest_again(layers, boundary, budget - 1):
                raise CheckFailed(
                    "lab01.choose_segments.exactly", expected=least, again=again, **told
                )
            raise CheckFailed("lab01.choose_segments.again", expected=least, again=again, **told)
    yield from ("budget", "fewest", "unequal", "impossible")


def _judge_form(got: Any, layers: list[int], told: dict[str, Any]) -> None:
    if not isinstance(got, list) or any(type(n) is not int or n < 1 for n in got) or not got:
        raise CheckFailed("lab01.choose_segments.form", **told)
    if sum(got) != len(layers):
        shown = {"expected": len(layers), "total": sum(got)}
        raise CheckFailed("lab01.choose_segments.sum", **shown, **told)


def _judge_peak(
    got: list[int],
    layers: list[int],
    boundary: int,
    budget: int,
    told: dict[str, Any],
    impossible: bool,
) -> None:
    by_segment = held(got, layers, boundary)
    peak = max(by_segment)
    if peak <= budget:
        return
    told = told | {"peak": peak, "number": 1 + by_segment.index(peak)}
    if impossible:
        raise CheckFailed("lab01.choose_segments.impossible", **told)
    if len(got) == 1:
        raise CheckFailed("lab01.choose_segments.plain", **told)
    if max(held(got, layers, 0)) <= budget:
        raise CheckFailed("lab01.choose_segments.inputs", **told)
    if max(by_segment[:-1], default=0) <= budget:
        raise CheckFailed("lab01.choose_segments.last", **told)
    raise CheckFailed("lab01.choose_segments.over", **told)


def held(lengths: Sequence[int], layers: Sequence[int], boundary: int) -> list[int]:
    """Bytes held while backward is in each segment."""
    ends = [0]
    for length in lengths:
        ends.append(ends[-1] + length)
    return [j * boundary + sum(layers[a:b]) for j, (a, b) in enumerate(pairwise(ends))]


def fewest_again(layers: Sequence[int], boundary: int, budget: int) -> int | None:
    """Layers that must run a second time, by trying every way to cut; None if nothing fits."""
    best = None
    for cuts in product((False, True), repeat=len(layers) - 1):
        lengths = [1]
        for cut in cuts:
            if cut:
                lengths.append(1)
            else:
                lengths[-1] += 1
        again = len(layers) - lengths[-1]
        if (best is None or again < best) and max(held(lengths, layers, boundary)) <= budget:
            best = again
    return best
