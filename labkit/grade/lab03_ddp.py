"""Lab 03: the check of DDP.

S bytes of trained parameters on each of N ranks:

| promise           | decided by                                                                  |
| ----------------- | --------------------------------------------------------------------------- |
| one start         | parameters and buffers of all ranks after construction                      |
| the mean gradient | the same steps on one process, within 1e-12                                 |
| silence           | no call in micro-batches that are not the last                              |
| S bytes           | payloads of the all-reduces; whole parameters fill them                     |
| few messages      | ⌈S/(bucket + largest parameter)⌉ to 2⌈S/bucket⌉ + 1                         |
| overlap           | a launch before the first layer's gradients, no wait before the last one's  |

Tied, frozen and unused parameters are part of every network. On one rank only values count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab03_ddp_ranks import (
    LEARNING_RATE,
    Case,
    Network,
    loss_of,
    train_cases,
    trained,
    words_of,
)

TIMEOUT_S = 6.0  # most hangs are told at once
CLOSE = 1e-12  # float64; the order of additions is free
BUCKET = 700  # bytes: here one call a tensor is too many, and one call for all too few
BOTH, FOUR = (0, 1), (0, 1, 2, 3)
PLAIN = (
    Case(told="5 steps", members=BOTH, bucket_bytes=BUCKET, branches=((BOTH,),) * 5),
    Case(told="3 micro-batches", members=BOTH, bucket_bytes=BUCKET, branches=((BOTH,) * 3,) * 2),
    Case(
        told="after an error inside no_sync()",
        members=BOTH,
        bucket_bytes=BUCKET,
        branches=((BOTH,),),
        interrupted=True,
    ),
    Case(told="a parameter a bucket", members=BOTH, bucket_bytes=1, branches=((BOTH,),) * 2),
    Case(told="one bucket", members=BOTH, bucket_bytes=10**6, branches=((BOTH,),) * 2),
)
UNUSED = (
    Case(
        told="a layer used by rank 0, by nobody, by both, by rank 1",
        members=BOTH,
        bucket_bytes=BUCKET,
        branches=(((0,),), ((),), (BOTH,), ((1,),)),
    ),
    Case(
        told="a layer used by rank 0, in the first of 3 micro-batches alone",
        members=BOTH,
        bucket_bytes=BUCKET,
        branches=(((0,), (), ()),) * 2,
    ),
)
GROUPS = (
    Case(told="4 ranks", members=FOUR, bucket_bytes=BUCKET, branches=((FOUR,),) * 2),
    Case(told="2 of 4 ranks", members=(1, 3), bucket_bytes=BUCKET, branches=((BOTH,), ((1,),))),
)
ALONE = (Case(told="1 rank", members=(0,), bucket_bytes=BUCKET, branches=(((0,),), ((0,),))),)
WORLDS = ((2, PLAIN), (2, UNUSED), (4, GROUPS), (1, ALONE))


def check_data_parallel(learner: Learner) -> Iterator[str]:
    """A class that trains as one process does, and hides what it sends behind backward."""
    for world_size, cases in WORLDS:
        by_rank = _train(learner, world_size, cases)
        for index, case in enumerate(cases):
            seen = [by_rank[rank][index] for rank in case.members]
            _judge_start(case, seen)
            _judge_weights(case, seen)
            for number, step in enumerate(_serial(case)):
                for place, of_rank in enumerate(seen):
                    where = {"rank": case.members[place], "step": number + 1, "case": case}
                    got = of_rank["steps"][number]
                    _judge_protocol(got, where)
                    _judge_gradients(case, step, got["gradients"], place, where)
                    if len(case.members) > 1:
                        _judge_messages(case, got["happened"], where)
                        _judge_order(case, got["happened"], where)
    yield from ("start", "gradients", "silence", "bytes", "messages", "overlap", "unused", "groups")


def _train(learner: Learner, world_size: int, cases: Sequence[Case]) -> list[Any]:
    """learner.run, with messages of its own for what unused parameters and groups lead to."""
    try:
        return learner.run(train_cases, world_size, cases, timeout=TIMEOUT_S)
    except CheckFailed as failure:
        told = str(failure.values.get("error", failure.values.get("waits", "")))
        if "not part of group" in told:
            raise CheckFailed("lab03.ddp.root", rank=failure.values["rank"]) from None
        if cases is UNUSED and failure.key in ("run.mismatch", "run.hang"):
            raise CheckFailed("lab03.ddp.unused", error=told) from None
        raise


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step on one process: the mean gradient, and that of each rank's own part."""

    names: list[str]
    mean: list[torch.Tensor]
    local: list[list[torch.Tensor]]


def _serial(case: Case) -> Iterator[Step]:
    network = Network(seed=1)
    names = [name for name, p in network.named_parameters() if p.requires_grad]
    for number, micro_batches in enumerate(case.branches):
        local = []
        for place in range(len(case.members)):
            network.zero_grad()
            for index, users in enumerate(micro_batches):
                words = words_of(number, index, place)
                loss = loss_of(network, words, place in users) / len(micro_batches)
                loss.backward()
            gradients = [p.grad for p in trained(network)]
            pairs = zip(gradients, trained(network), strict=True)
            local.append([torch.zeros_like(p) if g is None else g for g, p in pairs])
        mean = [torch.stack(parts).mean(0) for parts in zip(*local, strict=True)]
        yield Step(names=names, mean=mean, local=local)
        with torch.no_grad():
            for parameter, gradient in zip(trained(network), mean, strict=True):
                parameter.sub_(LEARNING_RATE * gradient)


def _judge_start(case: Case, seen: Sequence[dict[str, Any]]) -> None:
    first = Network(seed=1)
    named = {"start": first.named_parameters(), "buffers": first.named_buffers()}
    for kind, tensors in named.items():
        for index, (name, expected) in enumerate(tensors):
            for rank, of_rank in zip(case.members, seen, strict=True):
                got, expected = of_rank[kind][index], expected.detach()
                expect(f"lab03.ddp.{kind}", got, expected, name=name, rank=rank, case=case)


def _judge_weights(case: Case, seen: Sequence[dict[str, Any]]) -> None:
    """All steps at once: averaging weights shows only when they have come to differ."""
    for rank, of_rank in zip(case.members, seen, strict=True):
        for number, step in enumerate(of_rank["steps"]):
            for when, name in (("moved", "backward"), ("moved_late", "finish()")):
                if any(step[when]):
                    where = {"rank": rank, "step": number + 1, "case": case}
                    raise CheckFailed("lab03.ddp.weights", name=name, **where)


def _judge_protocol(got: dict[str, Any], where: dict[str, Any]) -> None:
    """What must hold whatever the numbers are."""
    names = [name for name, _ in got["happened"]]
    silent = _calls(got["happened"][: names.index("last")])
    if silent:
        raise CheckFailed("lab03.ddp.silence", got=len(silent), **where)
    finished = got["happened"][: names.index("finished")]
    open_calls = len(_calls(finished)) - [name for name, _ in finished].count("wait")
    if open_calls > 0:
        raise CheckFailed("lab03.ddp.unwaited", got=open_calls, **where)


MARKS = ("first layer", "gradient", "silent", "last", "wait", "backward returned", "finished")


def _calls(happened: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(name, count) for name, count in happened if name not in MARKS]


def _judge_gradients(
    case: Case, step: Step, gradients: list[Any], place: int, where: dict[str, Any]
) -> None:
    for index, (name, expected) in enumerate(zip(step.names, step.mean, strict=True)):
        got = gradients[index]
        if got is None and not expected.any():
            continue  # nobody used it
        if got is None:
            raise CheckFailed("lab03.ddp.no_gradient", name=name, **where)
        local = step.local[place][index]
        cause = _cause(case, got, expected, local) if got.shape == expected.shape else "values"
        expect(f"lab03.ddp.{cause}", got, expected, atol=CLOSE, name=name, **where)


def _cause(case: Case, got: torch.Tensor, expected: torch.Tensor, local: torch.Tensor) -> str:
    """The likeliest mistake behind a wrong gradient: the end of a message's key."""
    size = len(case.members)
    likely = {
        "local": local,
        "sum": size * expected,
        "divided": expected / size,
        "nothing": torch.zeros_like(expected),
    }
    if case in GROUPS:
        likely = {"world": expected * size / len(FOUR)} | likely
    for cause, value in likely.items():
        if torch.allclose(got, value, rtol=1e-9, atol=CLOSE):
            return cause
    return "values"


def _judge_messages(case: Case, happened: Sequence[tuple[str, int]], where: dict[str, Any]) -> None:
    calls = _calls(happened)
    for operation, _ in calls:
        if operation != "all_reduce":
            raise CheckFailed("lab03.ddp.operation", got=operation, **where)
    network = Network(seed=1)
    sizes = [p.nbytes for p in trained(network)]
    total, payload = sum(sizes), sum(count for _, count in calls)
    likely = {
        total + sum(p.nbytes for p in network.frozen.parameters()): "frozen",
        total + network.embedding.weight.nbytes: "tied",
    }
    expect(f"lab03.ddp.{likely.get(payload, 'bytes')}", payload, total, **where)
    least = ceil(total / (case.bucket_bytes + max(sizes)))
    most = 2 * ceil(total / case.bucket_bytes) + 1
    if not least <= len(calls) <= most:
        told = {"least": least, "most": most, "got": len(calls), "payload": total}
        raise CheckFailed("lab03.ddp.messages", **told, **where)
    payloads = [count for _, count in calls]
    if not can_fill(payloads, sizes):
        raise CheckFailed("lab03.ddp.split", got=payloads, **where)


def can_fill(payloads: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether the messages can be filled to the byte with whole parameters, each one once."""
    if not sizes:
        return not any(payloads)
    largest, *rest = sorted(sizes, reverse=True)
    for index in {payloads.index(payload) for payload in payloads if payload >= largest}:
        left = [payload - largest * (i == index) for i, payload in enumerate(payloads)]
        if can_fill(left, rest):
            return True
    return False


def _judge_order(case: Case, happened: Sequence[tuple[str, int]], where: dict[str, Any]) -> None:
    names = [name for name, _ in happened]
    names = names[names.index("last") :]
    last_gradient = max(i for i, name in enumerate(names) if name == "gradient")
    if "wait" in names[:last_gradient]:
        raise CheckFailed("lab03.ddp.waits", **where)
    several = sum(p.nbytes for p in trained(Network(seed=1))) > case.bucket_bytes
    if several and "all_reduce" not in names[: names.index("first layer")]:
        raise CheckFailed("lab03.ddp.late", **where)
