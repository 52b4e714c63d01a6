"""Lab 07: the check of dispatch and combine, and of the hunted layer.

| promise        | decided by                                                                   |
| -------------- | ---------------------------------------------------------------------------- |
| the output     | every expert on every token, on one process                                  |
| the gradients  | those of x, of the weights and of each expert, the sum over its tokens       |
| nothing extra  | bytes of numbers: copies for other ranks and the answers for their copies    |
| counts         | bytes of integers: at most 8 E a rank and pair, and none in backward         |

Source of the promise of bytes: GShard (arXiv 2006.16668), section 3, without its capacity.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab07_ranks import WIDTH, Case, Expert, data_of, run_moe
from labkit.measure.call import Call

TIMEOUT_S = 6.0  # most hangs are told at once
CLOSE = 1e-12
TOKEN_BYTES = WIDTH * 8

# Each line is one world. Most mistakes show in the first.
WORLDS = (
    (
        2,
        (
            Case(told="random", members=(0, 1), tokens=(5, 3), num_experts=4, k=2),
            Case(
                told="all to one rank",
                members=(0, 1),
                tokens=(3, 4),
                num_experts=4,
                k=2,
                never=(0, 1),
            ),
            Case(
                told="empty experts",
                members=(0, 1),
                tokens=(4, 1),
                num_experts=6,
                k=3,
                never=(1, 4),
            ),
        ),
    ),
    (
        4,
        (
            Case(told="random", members=(0, 1, 2, 3), tokens=(3, 6, 1, 2), num_experts=8, k=2),
            Case(told="a rank without tokens", members=(1, 3), tokens=(4, 0), num_experts=2, k=1),
        ),
    ),
    (1, (Case(told="alone", members=(0,), tokens=(5,), num_experts=3, k=2),)),
)


def check_moe(learner: Learner) -> Iterator[str]:
    """Tokens to their experts and back."""
    yield from _check("lab07.moe", learner)


def check_suspect(learner: Learner) -> Iterator[str]:
    """The same layer, with numbers that were right and messages that were not."""
    yield from _check("lab07.suspect", learner)


def _check(key: str, learner: Learner) -> Iterator[str]:
    for world_size, cases in WORLDS:
        by_rank = learner.run(run_moe, world_size, cases, timeout=TIMEOUT_S)
        for index, case in enumerate(cases):
            seen = [by_rank[rank][index] for rank in case.members]
            _judge_outputs(key, case, seen)
            _judge_gradients(key, case, seen)
            _judge_bytes(key, case, seen)
    yield from ("output", "gradients", "bytes", "again")


def outputs(
    case: Case, experts: Sequence[Expert], data: Sequence[tuple[torch.Tensor, ...]]
) -> list[torch.Tensor]:
    """Each rank's tokens, by every expert; most answers count nothing."""
    found = []
    for x, indices, weights, _ in data:
        shares = torch.zeros(len(x), case.num_experts, dtype=x.dtype).scatter(1, indices, weights)
        answers = torch.stack([expert(x) for expert in experts], 1)  # [T, E, D]
        found.append((shares.unsqueeze(-1) * answers).sum(1))
    return found


def serial(case: Case) -> tuple[list[torch.Tensor], list[Any], list[Any], list[Any]]:
    """Outputs, gradients of x and of the weights by rank, and those of all experts."""
    experts = [Expert(number) for number in range(case.num_experts)]
    data = [data_of(case, place) for place in range(len(case.members))]
    for x, _, weights, _ in data:
        x.requires_grad_()
        weights.requires_grad_()
    ys = outputs(case, experts, data)
    torch.autograd.backward(ys, [grad for *_, grad in data])
    x_grads, weights_grads = ([of[i].grad for of in data] for i in (0, 2))
    return [y.detach() for y in ys], x_grads, weights_grads, [e.matrix.grad for e in experts]


def _judge_outputs(key: str, case: Case, seen: Sequence[dict[str, Any]]) -> None:
    expected = serial(case)[0]
    for place, got in enumerate(seen):
        told = {"rank": case.members[place], "case": case}
        if got["changed"]:
            raise CheckFailed(f"{key}.input", **told)
        y = got["y"]
        if isinstance(y, torch.Tensor) and y.shape == expected[place].shape and y.numel():
            cause = _cause(case, place, y, expected[place])
            expect(f"{key}.{cause}", y, expected[place], atol=CLOSE, **told)
        expect(f"{key}.values", y, expected[place], atol=CLOSE, **told)
        expect(f"{key}.again", got["again"], y, atol=CLOSE, **told)
        if not got["attached"]:
            raise CheckFailed(f"{key}.detached", **told)


def _cause(case: Case, place: int, y: torch.Tensor, expected: torch.Tensor) -> str:
    """The likeliest mistake behind a wrong output: the end of a message's key."""
    x, indices, weights, grad = data_of(case, place)
    first = torch.zeros_like(weights)
    first[:, 0] = weights[:, 0]
    likely = {
        "slots": weights.flip(1),
        "unweighted": torch.ones_like(weights),
        "first_only": first,
        "mean": torch.full_like(weights, 1 / case.k),
    }
    experts = [Expert(number) for number in range(case.num_experts)]
    for cause, others in likely.items():
        if case.k > 1 and not torch.equal(others, weights):
            (value,) = outputs(case, experts, [(x, indices, others, grad)])
            if _near(y, value):
                return cause
    rows = (y[:, None] - expected[None]).abs().amax(-1) <= CLOSE  # [T, T]
    return "order" if bool(rows.any(0).all()) else "values"


def _near(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool(((got - expected).abs() <= CLOSE).all())


def _judge_gradients(key: str, case: Case, seen: Sequence[dict[str, Any]]) -> None:
    _, x_grads, weights_grads, expert_grads = serial(case)
    for place, got in enumerate(seen):
        told = {"rank": case.members[place], "case": case}
        for name, expected in (("x", x_grads[place]), ("weights", weights_grads[place])):
            value = got[f"{name}_grad"]
            value = torch.zeros_like(expected) if value is None else value
            expect(f"{key}.{name}_gradient", value, expected, atol=CLOSE, **told)
        for number, value in zip(case.own(place), got["expert_grads"], strict=True):
            expected = expert_grads[number]
            value = torch.zeros_like(expected) if value is None else value
            divided = expected / len(case.members)
            cause = "expert_divided" if _near(value, divided) else "expert_gradient"
            expect(f"{key}.{cause}", value, expected, atol=CLOSE, expert=number, **told)


def copies(case: Case, place: int) -> list[int]:
    """How many copies of this rank's tokens go to each rank of the group."""
    indices = data_of(case, place)[1].flatten()
    by_expert = indices.bincount(minlength=case.num_experts)
    return [int(by_expert[list(case.own(other))].sum()) for other in range(len(case.members))]


def _judge_bytes(key: str, case: Case, seen: Sequence[dict[str, Any]]) -> None:
    sizes = [copies(case, place) for place in range(len(case.members))]
    for place, got in enumerate(seen):
        away = sum(n for other, n in enumerate(sizes[place]) if other != place)
        arrived = sum(of[place] for other, of in enumerate(sizes) if other != place)
        told = {"rank": case.members[place], "case": case, "copies": away, "arrived": arrived}
        most = 8 * case.num_experts * (len(case.members) - 1)
        for when in ("forward", "backward"):
            calls: Sequence[Call] = got[when]
            numbers = [c for c in calls if c.dtype is not None and c.dtype.is_floating_point]
            expected, sent = (away + arrived) * TOKEN_BYTES, sum(c.bytes_sent for c in numbers)
            shown = {"when": when, "expected": expected, "got": sent}
            for call in calls:
                if call.axis not in ("ep", "world") or call.ranks != case.members:
                    raise CheckFailed(f"{key}.other_group", operation=call.operation, **told)
            if sent != expected:
                cause = _bytes_cause(numbers, sent - expected)
                raise CheckFailed(f"{key}.{cause}", **shown, **told)
            counts = sum(c.bytes_sent for c in calls if c not in numbers)
            if counts > (most if when == "forward" else 0):
                raise CheckFailed(
                    f"{key}.counts", **shown | {"expected": most, "got": counts}, **told
                )


def _bytes_cause(calls: Sequence[Call], extra: float) -> str:
    operations = {call.operation for call in calls}
    if operations & {"all_gather", "all_reduce", "broadcast", "reduce_scatter"}:
        return "gathered"
    equal = all(len(set(c.sends)) == 1 for c in calls if c.operation == "all_to_all")
    return "padded" if extra > 0 and equal else "bytes"
