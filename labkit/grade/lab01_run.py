"""Lab 01: the checks of a forward pass by segments, and of the bug hunt, which is one too.

Gradients are those of the plain run, within rounding. Which layers ran again is compared with the
plan: those of the last segment need not, every other one once. What autograd holds at the end of
the forward pass is, to the byte, one input for each segment that will run again, and what the
layers of the last one keep. The most that is alive at any moment of the step is compared with the
same plan run by labkit.parallel.recompute.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import nn

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab01_run_ranks import (
    BOUNDARY_BYTES,
    LAYER_BYTES,
    Case,
    Layer,
    run_case,
    run_cases,
)
from labkit.grade.lab01_segments import held
from labkit.parallel.recompute import recompute

CLOSE = 1e-12  # float64; a wrong gradient differs by more than 1e-3
SLACK_BYTES = 4 * BOUNDARY_BYTES  # of temporaries; a further layer would hold 25 boundaries
RUNS = (
    Case(told=(3, 2, 3), lengths=(3, 2, 3)),
    Case(told=(2, 5), lengths=(2, 5), input_needs_gradient=False),
    Case(told=(6,), lengths=(6,)),
    Case(told=(1, 1, 1, 1), lengths=(1, 1, 1, 1)),
    Case(told=(1,), lengths=(1,)),
    Case(told=(4, 1, 2, 1), lengths=(4, 1, 2, 1)),
    Case(told=(3, 2, 3), lengths=(3, 2, 3)),  # again, for a function that remembers something
)
SUSPECTS = (
    Case(told=3, lengths=(3, 3, 1)),
    Case(told=4, lengths=(4, 4)),
    Case(told=2, lengths=(2, 2, 2), input_needs_gradient=False),
    Case(told=5, lengths=(5,)),
    Case(told=1, lengths=(1, 1, 1)),
    Case(told=9, lengths=(4,)),
)


def check_run_segments(learner: Learner) -> Iterator[str]:
    """A forward pass by the segments that are told."""
    _judge("lab01.run_segments", learner, RUNS)
    yield from ("gradients", "recomputation", "kept", "peak")


def check_suspect(learner: Learner) -> Iterator[str]:
    """The same with segments of equal length."""
    _judge("lab01.suspect", learner, SUSPECTS)
    yield from ("gradients", "recomputation", "kept", "peak")


def _judge(key: str, learner: Learner, cases: Sequence[Case]) -> None:
    seen = _seen(key, learner, cases)
    for case, got in zip(cases, seen, strict=True):
        told = {"case": case}
        if got["changed"]:
            raise CheckFailed(f"{key}.changed", **told)
        everything = list(range(case.num_layers))
        if got["first"] != everything:
            raise CheckFailed(f"{key}.first", expected=everything, got=got["first"], **told)
        plan, plain = planned(case), run_plainly(case)
        expect(f"{key}.result", got["result"], plain["result"], atol=CLOSE, **told)
        missing = [place // 2 for place, g in enumerate(got["gradients"]) if g is None]
        if missing:
            raise CheckFailed(f"{key}.no_gradient", layer=missing[0], **told)
        pairs = list(zip(got["gradients"], plain["gradients"], strict=True))
        if case.input_needs_gradient:
            pairs.append((got["input_gradient"], plain["input_gradient"]))
        for gradient, expected in pairs:
            expect(f"{key}.gradient", gradient, expected, atol=CLOSE, **told)
        _judge_layers(key, case, got)
        of_segments = held(case.lengths, [LAYER_BYTES] * case.num_layers, BOUNDARY_BYTES)
        if got["kept"] > of_segments[-1]:
            shown = {"expected": of_segments[-1], "got": got["kept"], "plain": plain["kept"]}
            raise CheckFailed(f"{key}.kept", boundary=BOUNDARY_BYTES, **shown, **told)
        if got["peak"] > plan["peak"] + SLACK_BYTES:
            shown = {"expected": plan["peak"], "got": got["peak"]}
            raise CheckFailed(f"{key}.peak", layer_bytes=LAYER_BYTES, **shown, **told)


def _seen(key: str, learner: Learner, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Every case; a second run that is not the first one has a message of its own."""
    try:
        return learner.run(run_cases, 1, cases)[0]
    except CheckFailed as failure:
        error = str(failure.values.get("error", ""))
        if "the first run saved" in error or "CheckpointError" in error:
            told = error.splitlines()[0].rstrip(".")
            raise CheckFailed(f"{key}.second_run", error=told) from None
        raise


def _judge_layers(key: str, case: Case, got: dict[str, Any]) -> None:
    expected, again = again_by(case.lengths), got["again"]
    if again == expected:
        return
    told = {"expected": expected, "got": again, "case": case}
    last = set(range(case.num_layers - case.lengths[-1], case.num_layers))
    if not again:
        raise CheckFailed(f"{key}.never", **told)
    if len(set(again)) < len(again):
        raise CheckFailed(f"{key}.often", **told)
    if last <= set(again):
        raise CheckFailed(f"{key}.last", **told)
    raise CheckFailed(f"{key}.again", **told)


def again_by(lengths: Sequence[int]) -> list[int]:
    """The layers that run a second time, in the order in which backward needs them."""
    starts = [sum(lengths[:j]) for j in range(len(lengths))]
    segments = [list(range(start, start + n)) for start, n in zip(starts, lengths, strict=True)]
    return [layer for segment in reversed(segments[:-1]) for layer in segment]


def by_plan(layers: Sequence[Layer], x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """All segments but the last are recomputed."""
    start = 0
    for length in lengths[:-1]:
        x = recompute(nn.Sequential(*layers[start : start + length]), x)
        start += length
    return nn.Sequential(*layers[start:])(x)


@cache
def planned(case: Case) -> dict[str, Any]:
    """What is seen of labkit's recomputation."""
    return run_case(lambda layers, x, _: by_plan(layers, x, case.lengths), case)


@cache
def run_plainly(case: Case) -> dict[str, Any]:
    """What is seen where nothing is recomputed."""
    return run_case(lambda layers, x, _: nn.Sequential(*layers)(x), case)
