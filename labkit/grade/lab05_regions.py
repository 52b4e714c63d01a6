"""Lab 05: the check of the two ends of a sharded region, copy_to and reduce_from.

| function    | forward           | backward          |
| ----------- | ----------------- | ----------------- |
| copy_to     | identity          | one all-reduce, S |
| reduce_from | one all-reduce, S | identity          |

Every rank has other numbers, forward and backward, so that a sum in the wrong pass shows.
"""

from collections.abc import Iterator
from typing import Any

from labkit.grade.check import Learner
from labkit.grade.lab05_layer import TIMEOUT_S, Case, judge_records
from labkit.grade.lab05_linear import SIZES
from labkit.grade.lab05_ranks import Part, Trial, run_functions
from labkit.grade.lab05_seen import Seen, Want
from labkit.grade.lab05_whole import draw, told_groups


def check_regions(learner: Learner) -> Iterator[str]:
    """Identity and all-reduce, the one backward where the other is forward."""
    pairs = [_cases(number, *sizes) for number, sizes in enumerate(SIZES)]
    copies, sums = zip(*pairs, strict=True)
    for world_size in (2, 4):
        trials = [trial for trial, _ in copies if trial.world_size == world_size]
        by_rank = learner.run(run_functions, world_size, trials, timeout=TIMEOUT_S)
        for index, (cases, cause) in enumerate(((copies, _copy_cause), (sums, _reduce_cause))):
            here = [case for case in cases if case[0].world_size == world_size]
            records = [[trial[index] for trial in record] for record in by_rank]
            judge_records(records, here, cause)
    yield from ("copy_to", "reduce_from")


def _cases(
    number: int, world_size: int, tp: int, B: int, T: int, D: int, _: int, strided: bool
) -> tuple[Case, Case]:
    """copy_to and reduce_from of the same tensors, with other numbers on every rank."""
    drawn = [draw(100 * number + r, (B, T, D), (B, T, D)) for r in range(world_size)]
    note = ", every third element of a larger tensor" if strided else ""
    trial = Trial(
        world_size=world_size,
        tp=tp,
        told=f"{told_groups(world_size, tp)}, x [{B}, {T}, {D}]{note}",
        parts=tuple(Part(whole=(), inputs=(x,), grad=grad) for x, grad in drawn),
        strided=strided,
    )
    one = [("all_reduce", "tp", 8 * B * T * D)]
    copies, sums = [], []
    for rank, (x, grad) in enumerate(drawn):
        y, dx = (sum(drawn[m][which] for m in trial.members(rank)) for which in (0, 1))
        copies.append(_want(x, dx, [], one))
        sums.append(_want(y, grad, one, []))
    return (trial, copies), (trial, sums)


def _want(output: Any, grad: Any, forward: list, backward: list) -> Want:
    sent = {"forward": forward, "backward": backward}
    return Want(output=output, input_grads=(grad,), shards={}, grads={}, **sent)


def _copy_cause(what: str, seen: Seen) -> str:
    if what.startswith(("output", "calls forward")):
        return "lab05.regions.copy_forward"
    return "lab05.regions.copy_backward" if what.startswith("input_grad") else ""


def _reduce_cause(what: str, seen: Seen) -> str:
    if what.startswith("output"):
        return "lab05.regions.reduce_forward"
    return "lab05.regions.reduce_backward" if what.startswith(("input_grad", "calls b")) else ""
