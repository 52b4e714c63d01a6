"""Lab 04: the checks of ZeRO-1 and ZeRO-2.

S bytes of parameters in float64 on each of N ranks, M micro-batches a step, c the bytes of a share:
S/N, plus at most one number of padding a parameter.

| stage  | optimizer state | else, beside weights | a rank sends a step |
| ------ | --------------- | -------------------- | ------------------- |
| ZeRO-1 | 2 c             | 2 c and .grad        | 2 (N−1) c           |
| ZeRO-2 | 2 c             | 2 c                  | (1 + M) (N−1) c     |

Weights are compared with AdamW in one process, step by step. What a rank holds is measured from
outside (lab04_meter.py), what it sends comes from the ledger.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab04_ranks import NUMBER, Case, run_backward, run_step_only
from labkit.grade.lab04_weights import computed, given, judge_weights

TIMEOUT_S = 12.0  # most hangs are told at once; right answers have time, whatever else runs here
RAGGED = ((3,), (1,), (2,), (7,))
THREE, FOUR = (0, 1, 2), (0, 1, 2, 3)
# Two cases come first, on three ranks: one that divides, where bytes are exact, and a ragged one.
STEP_ONLY = {
    3: (
        Case(members=THREE, shapes=((4, 3), (6,)), seed=1),
        Case(members=THREE, shapes=RAGGED, seed=2),
    ),
    4: (
        Case(members=FOUR, shapes=RAGGED, num_steps=5, unused=2, seed=3),
        Case(members=FOUR, shapes=((5,),), seed=4),  # the last rank owns nothing but padding
        Case(members=(1, 3), shapes=((5, 3), (1,)), seed=5),
        Case(members=(2,), shapes=((3, 2),), seed=6),
    ),
}
BACKWARD = {
    3: (
        Case(members=THREE, shapes=((4, 3), (6,), (9,), (3, 3), (12,)), seed=7),
        Case(members=THREE, shapes=RAGGED, num_micro_batches=2, seed=8),
    ),
    4: (
        Case(members=FOUR, shapes=RAGGED, num_micro_batches=3, seed=9),
        Case(members=FOUR, shapes=((5,), (3,), (6,)), seed=10),
        Case(members=(1, 3), shapes=((5, 3), (1,), (4,)), num_steps=5, seed=11),
        Case(members=(2,), shapes=((3, 2),), num_micro_batches=2, seed=12),
    ),
}
AnyCase = TypeVar("AnyCase", bound=Case)


def check_zero1(learner: Learner) -> Iterator[str]:
    """An optimizer whose state is sharded."""
    for case, seen in trials(learner, run_step_only, STEP_ONLY):
        judge_weights(case, seen, given)
        judge_bytes(case, seen)
        judge_traffic(case, seen, halves=2)
    yield from ("weights", "optimizer_bytes", "kept_bytes", "traffic")


def check_zero2(learner: Learner) -> Iterator[str]:
    """Gradients are sharded as well, while backward runs."""
    for case, seen in trials(learner, run_backward, BACKWARD):
        for place, rank in enumerate(case.members):
            if got := seen[place]["whole_bytes"]:
                raise CheckFailed("lab04.zero2.whole", rank=rank, got=got, case=case)
        judge_weights(case, seen, computed)
        judge_bytes(case, seen)
        largest = sorted(case.lengths)[-2:]
        for place, rank in enumerate(case.members):
            where: dict[str, Any] = {"rank": rank, "case": case}
            at_most(
                "lab04.zero2.between", seen[place]["between_bytes"], 2 * case.share_bytes, **where
            )
            most = seen[place]["most_gradient_bytes"]
            at_most("lab04.zero2.at_once", most, NUMBER * sum(largest), **where)
        judge_traffic(case, seen, halves=1 + case.num_micro_batches)
    yield from ("weights", "optimizer_bytes", "gradient_bytes", "at_once", "traffic")


def trials(
    learner: Learner, program: Callable, worlds: Mapping[int, Sequence[AnyCase]]
) -> Iterator[tuple[AnyCase, list[dict[str, Any]]]]:
    """Every case with what its members saw, in the order of the group."""
    for world_size, cases in worlds.items():
        by_rank = learner.run(program, world_size, cases, timeout=TIMEOUT_S)
        for index, case in enumerate(cases):
            yield case, [by_rank[rank][index] for rank in case.members]


def at_most(key: str, got: int, most: int, **values: Any) -> None:
    """Fail with this key if more is held than may be."""
    if got > most:
        raise CheckFailed(key, expected=most, got=got, **values)


def judge_bytes(case: Case, seen: Sequence[dict[str, Any]]) -> None:
    """What every rank holds after the last step."""
    whole = NUMBER * sum(case.lengths)
    for place, rank in enumerate(case.members):
        where: dict[str, Any] = {"rank": rank, "case": case, "whole": whole}
        of_state = seen[place]["optimizer_bytes"]
        at_most("lab04.zero.optimizer_bytes", of_state, 2 * case.share_bytes, **where)
        at_most("lab04.zero.kept_bytes", seen[place]["kept_bytes"], 2 * case.share_bytes, **where)


def judge_traffic(case: Case, seen: Sequence[dict[str, Any]], halves: int) -> None:
    """Bytes that every rank sends a step: `halves` times the part of S that is not its own."""
    size = len(case.members)
    for place, rank in enumerate(case.members):
        for calls in seen[place]["calls"]:
            judge_sent(
                "lab04.zero.traffic",
                calls,
                halves * (NUMBER * sum(case.lengths) - case.share_bytes),
                halves * (size - 1) * case.share_bytes,
                rank=rank,
                case=case,
            )


def judge_sent(key: str, calls: Sequence[Any], least: int, most: int, **values: Any) -> None:
    """Bytes of calls; both bounds are the same where every length divides by the ranks.

    Raises:
        CheckFailed: with a key of its own where an all-reduce is among the calls.
    """
    sent = sum(call.bytes_sent for call in calls)
    if least <= sent <= most:
        return
    names = [call.operation for call in calls]
    listed = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "none"
    if "all_reduce" in names and sent > most:
        key = "lab04.zero.reduced"
    expected = f"{most}" if least == most else f"{least} to {most}"
    raise CheckFailed(key, expected=expected, got=sent, calls=listed, **values)
