"""Lab 06: the check of the executor, which runs any schedule's actions on a rank's own stage.

| promise             | decided by                                                               |
| ------------------- | ------------------------------------------------------------------------ |
| the order           | forwards and backwards that the stage saw, against the given actions     |
| the gradient        | the mean loss of the whole batch on one process, within 1e-12            |
| activations freed   | micro-batches of which autograd holds something, after every forward     |
| neighbours only     | the other end of every message                                           |
| nothing twice       | messages of each pair and direction: one a micro-batch, of b·D numbers   |

Schedules are GPipe's, with backward in either order, and 1F1B's.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab06_schedules import Pair, held, names
from labkit.grade.lab06_stage_ranks import (
    ROWS,
    WIDTH,
    Case,
    Stage,
    batch_of,
    loss_of,
    run_stages,
)
from labkit.parallel.pipeline import gpipe, one_f_one_b

TIMEOUT_S = 6.0  # most hangs are told at once
CLOSE = 1e-12  # float64; the order of additions is free
MESSAGE_BYTES = ROWS * WIDTH * 8
Actions = tuple[tuple[Pair, ...], ...]


def pairs_of(schedule: Any) -> Actions:
    """The library's schedule in the lab's format."""
    return tuple(tuple((a.kind, a.micro_batch) for a in row) for row in schedule.ranks)


def last_comes_back_first(num_stages: int, num_micro_batches: int) -> Actions:
    """GPipe with backward in the other order, as in its paper."""
    numbers = range(num_micro_batches)
    row = [("F", i) for i in numbers] + [("B", i) for i in reversed(numbers)]
    return (tuple(row),) * num_stages


def _case(told: str, members: tuple[int, ...], num_micro_batches: int) -> Case:
    make = {
        "1F1B": lambda p, m: pairs_of(one_f_one_b(p, m)),
        "GPipe": lambda p, m: pairs_of(gpipe(p, m)),
        "GPipe, the last comes back first": last_comes_back_first,
    }[told]
    return Case(
        told=told,
        members=members,
        num_micro_batches=num_micro_batches,
        actions=make(len(members), num_micro_batches),
    )


THREE = (0, 1, 2)
WORLDS = (
    (
        3,
        (
            _case("GPipe", THREE, 3),
            _case("1F1B", THREE, 8),
            _case("GPipe, the last comes back first", THREE, 3),
            _case("1F1B", THREE, 1),
        ),
    ),
    (4, (_case("1F1B", (1, 3), 3), _case("1F1B", (0, 1, 2, 3), 8))),
    (1, (_case("GPipe", (0,), 3), _case("1F1B", (0,), 8))),
)


def check_run_stage(learner: Learner) -> Iterator[str]:
    """An executor that does what the actions say, and nothing else."""
    for world_size, cases in WORLDS:
        for case, seen in ran(learner, world_size, cases, "lab06.run_stage"):
            assert case.actions is not None, "every case of this exercise has actions"
            for place, of_rank in enumerate(seen):
                told = {"rank": case.members[place], "case": case}
                actions = case.actions[place]
                _judge_order(of_rank["happened"], actions, told)
                most = held(actions)
                got = max(count for kind, _, _, count in of_rank["happened"] if kind == "F")
                if got > most:
                    raise CheckFailed("lab06.run_stage.held", expected=most, got=got, **told)
            judge_numbers("lab06.run_stage", case, seen)
            judge_messages("lab06.run_stage", case, seen)
    yield from ("order", "memory", "gradients", "messages", "groups", "alone")


def ran(
    learner: Learner, world_size: int, cases: Sequence[Case], key: str
) -> Iterator[tuple[Case, list[Any]]]:
    """Every case with what its ranks saw; messages of their own for what goes wrong on the way."""
    try:
        by_rank = learner.run(run_stages, world_size, cases, timeout=TIMEOUT_S)
    except CheckFailed as failure:
        told = str(failure.values.get("error", failure.values.get("waits", "")))
        if "NotANeighbour: " in told:
            pair = told.partition("NotANeighbour: ")[2].splitlines()[0]
            raise CheckFailed(f"{key}.neighbour", got=pair) from None
        if "not part of group" in told:
            pair = f"rank {failure.values['rank']} and a rank outside its group"
            raise CheckFailed(f"{key}.neighbour", got=pair) from None
        if failure.key in ("run.hang", "run.mismatch"):
            raise CheckFailed(f"{key}.stuck", waits=told) from None
        raise
    for index, case in enumerate(cases):
        yield case, [by_rank[rank][index] for rank in case.members]


def _judge_order(
    happened: Sequence[tuple[str, int, int, int]], actions: Sequence[Pair], told: dict[str, Any]
) -> None:
    for _, _, rows, _ in happened:
        if rows not in (0, ROWS):
            raise CheckFailed("lab06.run_stage.rows", expected=ROWS, got=rows, **told)
    got = [(kind, i) for kind, i, *_ in happened]
    if got != list(actions):
        shown = {"expected": names(actions), "got": names(got).replace("-1", "?")}
        raise CheckFailed("lab06.run_stage.order", **shown, **told)


def judge_numbers(key: str, case: Case, seen: Sequence[dict[str, Any]]) -> None:
    """Gradients and loss are those of the whole batch on one process."""
    loss, expected = serial(len(case.members), case.num_micro_batches)
    for place, of_rank in enumerate(seen):
        told = {"rank": case.members[place], "case": case}
        if of_rank["changed"]:
            raise CheckFailed(f"{key}.input", **told)
        for got, gradient in zip(of_rank["gradients"], expected[place], strict=True):
            if got is None:
                raise CheckFailed(f"{key}.no_gradient", **told)
            cause = _cause(got, gradient, case.num_micro_batches)
            expect(f"{key}.{cause}", got, gradient, atol=CLOSE, **told)
    got = seen[-1]["loss"]
    if got is None or not abs(got - loss) <= CLOSE:
        shown = {"expected": f"{loss:.12g}", "got": "none" if got is None else f"{got:.12g}"}
        raise CheckFailed(f"{key}.loss", rank=case.members[-1], case=case, **shown)


def serial(num_stages: int, num_micro_batches: int) -> tuple[float, list[list[torch.Tensor]]]:
    """The mean loss of the batch, and its gradients by stage."""
    stages = [Stage(place) for place in range(num_stages)]
    total = torch.zeros((), dtype=torch.float64)
    for x, target in zip(*batch_of(num_micro_batches), strict=True):
        for stage in stages:
            x = stage(x)
        total = total + loss_of(x, target) / num_micro_batches
    total.backward()
    gradients = [[p.grad for p in stage.parameters() if p.grad is not None] for stage in stages]
    return total.item(), gradients


def _cause(got: torch.Tensor, expected: torch.Tensor, num_micro_batches: int) -> str:
    """The likeliest mistake behind a wrong gradient: the end of a message's key."""
    m = num_micro_batches
    divided = [("divided", expected / m**times) for times in (1, 2, 3)]  # by up to three ranks
    for cause, value in (("sum", m * expected), ("nothing", 0 * expected), *divided):
        if not torch.equal(value, expected) and torch.allclose(got, value, rtol=1e-9, atol=CLOSE):
            return cause
    return "values"


def judge_messages(key: str, case: Case, seen: Sequence[dict[str, Any]]) -> None:
    """One message a micro-batch, pair and direction, each of them awaited."""
    for place, of_rank in enumerate(seen):
        told = {"rank": case.members[place], "case": case}
        neighbours = [case.members[p] for p in (place - 1, place + 1) if 0 <= p < len(case.members)]
        for operation, _, _ in of_rank["calls"]:
            if operation not in ("send", "recv"):
                raise CheckFailed(f"{key}.operation", got=operation, **told)
        for other in neighbours:
            for operation in ("send", "recv"):
                sizes = [b for what, r, b in of_rank["calls"] if (what, r) == (operation, other)]
                expected = case.num_micro_batches * MESSAGE_BYTES
                if sum(sizes) != expected or len(sizes) != case.num_micro_batches:
                    shown = {"operation": operation, "other": other, "number": len(sizes)}
                    sums = {"expected": expected, "got": sum(sizes)}
                    raise CheckFailed(f"{key}.bytes", **shown, **sums, **told)
        if of_rank["unwaited"] > 0:
            raise CheckFailed(f"{key}.unwaited", got=of_rank["unwaited"], **told)
