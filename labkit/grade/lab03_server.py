"""Lab 03: the check of the synchronous parameter server.

S bytes of parameters on each of N ranks, the first of the group serves and works:

| rank       | sends  | receives |
| ---------- | ------ | -------- |
| server     | (N−1)S | (N−1)S   |
| every other | S     | S        |

Single calls are on whole numbers, with weights that differ from rank to rank: only the server's
count, since it is the server that keeps them. Five steps of training must give what SGD gives on
one process with all data.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab02_ranks import Case
from labkit.grade.lab03_server_ranks import (
    LEARNING_RATE,
    NUM_STEPS,
    TRAINING_RATE,
    data_of,
    descent,
    gradient_of,
    run_server_step,
    weights_of,
)
from labkit.measure.events import Launch, Wait

# Three ranks first: on two, an all-reduce moves as many bytes as a server does.
CASES = {
    4: (
        Case(members=(0, 1, 2), shape=(5,), seed=31),
        Case(members=(1, 2, 3), shape=(7,), dtype=torch.float32, seed=32),
        Case(members=(0, 1, 2, 3), shape=(1,), seed=33),
        Case(members=(1, 3), shape=(6,), seed=34),
        Case(members=(2,), shape=(3,), seed=35),
    ),
}
TIMEOUT_S = 6.0  # right answers have time, whatever else runs here
BETWEEN_TWO = ("send", "recv")
ROOTED = ("broadcast", "gather", "reduce", "scatter")


def check_server_step(learner: Learner) -> Iterator[str]:
    """The mean gradient's step on every rank, by way of the server."""
    for world_size, cases in CASES.items():
        by_rank = _run_on_groups(learner, world_size, cases)
        for index, case in enumerate(cases):
            for place, rank in enumerate(case.members):
                seen = by_rank[rank][index]
                where: dict[str, Any] = {"rank": rank, "case": case}
                _judge_step(case, place, seen, where)
                _judge_traffic(case, place, seen, where)
            serial = _serial(case)
            for rank in case.members:
                _judge_training(by_rank[rank][index], serial, rank=rank, case=case)
    yield from ("values", "inputs", "server_bytes", "worker_bytes", "training")


def _run_on_groups(learner: Learner, world_size: int, cases: Sequence[Case]) -> list[Any]:
    try:
        return learner.run(run_server_step, world_size, cases, timeout=TIMEOUT_S)
    except CheckFailed as failure:
        told = str(failure.values.get("error", ""))
        if failure.key != "run.raised" or "not part of group" not in told:
            raise
        error = re.sub(" <torch.*?>", "", told).partition(": ")[2]
        raise CheckFailed("lab03.server.peer", rank=failure.values["rank"], error=error) from None


def _judge_step(case: Case, place: int, seen: dict[str, Any], where: dict[str, Any]) -> None:
    rank, close = case.members[place], 1e-9 if case.dtype == torch.float64 else 1e-3
    all_waited(seen["events"], **where)
    got = seen["result"]
    if not isinstance(got, torch.Tensor):
        raise CheckFailed("lab03.server.nothing", got=type(got).__name__, **where)
    expected, likely = _results(case, rank)
    cause = "values"
    if got.shape == expected.shape and not torch.allclose(got, expected, rtol=0, atol=close):
        names = [n for n, wrong in likely if torch.allclose(got, wrong, rtol=0, atol=close)]
        cause = (*names, "values")[0]
    expect(f"lab03.server.{cause}", got, expected, atol=close, **where)
    for name, after, given in zip(
        ("weights", "gradient"),
        seen["inputs"],
        (weights_of(case, rank), gradient_of(case, rank)),
        strict=True,
    ):
        expect("lab03.server.input", after, given, name=name, **where)
    expect("lab03.server.again", seen["again"], expected, atol=close, **where)


def _results(case: Case, rank: int) -> tuple[torch.Tensor, list[tuple[str, torch.Tensor]]]:
    """What a rank must return, and likely wrong results, each with the end of its message's key."""
    size, step = len(case.members), LEARNING_RATE
    all_weights = {r: weights_of(case, r) for r in case.members}
    served, own = all_weights[case.members[0]], all_weights[rank]
    gradients = torch.stack([gradient_of(case, r) for r in case.members])
    total, mean, others = gradients.sum(0), gradients.sum(0) / size, max(1, size - 1)
    likely = [
        ("old", served),
        ("old", own),
        ("sum", served - step * total),
        ("forgotten", served - step * (total - gradients[0]) / size),
        ("forgotten", served - step * (total - gradients[0]) / others),
        ("divisor", served - step * total / others),
        ("own_weights", own - step * mean),
        ("alone", served - step * gradient_of(case, rank)),
        ("alone", own - step * gradient_of(case, rank)),
        ("uphill", served + step * mean),
    ]
    return served - step * mean, likely


def _judge_traffic(case: Case, place: int, seen: dict[str, Any], where: dict[str, Any]) -> None:
    server, size = case.members[0], len(case.members)
    payload = case.dtype.itemsize * torch.Size(case.shape).numel()
    for call in seen["calls"]:
        if call.operation not in (*BETWEEN_TWO, *ROOTED, "barrier"):
            raise CheckFailed("lab03.server.nobody_serves", got=call.operation, **where)
        rooted = call.operation in ROOTED and call.peer != server
        aside = call.operation in BETWEEN_TWO and place and call.peer not in (server, None)
        if rooted or aside:
            told = {"operation": call.operation, "expected": server, "got": call.peer}
            raise CheckFailed("lab03.server.other_server", **told, **where)
    expected = payload * (1 if place else size - 1)
    who = "a worker" if place else "the server"
    for way in ("sent", "received"):
        got = sum(int(getattr(call, f"bytes_{way}")) for call in seen["calls"])
        told = {"who": who, "way": way, "payload": payload}
        expect("lab03.server.bytes", got, expected, **told, **where)


def _serial(case: Case) -> list[torch.Tensor]:
    """The weights after each step of one process with all data."""
    parts = [data_of(case, rank) for rank in case.members]
    x, targets = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
    weights, after = torch.zeros(case.shape, dtype=torch.float64), []
    for _ in range(NUM_STEPS):
        weights = weights - TRAINING_RATE * descent(weights, x, targets)
        after.append(weights)
    return after


def _judge_training(seen: dict[str, Any], serial: list[torch.Tensor], **where: Any) -> None:
    for step, expected in enumerate(serial):
        got: Any = seen["trained"][step] if step < len(seen["trained"]) else None
        off = "unknown"
        if isinstance(got, torch.Tensor) and got.shape == expected.shape:
            off = f"{float((got - expected).abs().max()):.1e}"
        told = {"step": step + 1, "off": off, **where}
        expect("lab03.server.training", got, expected, atol=1e-12, **told)


def all_waited(events: Iterable[Any], **where: Any) -> None:
    events = list(events)
    waited = {event.id for event in events if isinstance(event, Wait)}
    for event in events:
        if isinstance(event, Launch) and event.id not in waited:
            raise CheckFailed("lab03.server.unwaited", operation=event.operation, **where)
