"""Lab 02: the checks of the ring collectives.

S bytes on each of N ranks, the one at place p of its group:

| collective     | messages and rounds | a rank sends                |
| -------------- | ------------------- | --------------------------- |
| reduce-scatter | N−1                 | S less chunk p              |
| all-gather     | N−1                 | S less chunk p−1            |
| all-reduce     | 2(N−1)              | 2S less both                |

The ring of this lab turns downwards: place p sends to p−1 and receives from p+1. The suspect of the
bug hunt turns upwards, as the chapter's ring does, and so never sends chunks p and p+1.

Rounds are those of a replay of the logs, on links where a message takes one second, however long.
Numbers are whole and small, so every order of additions gives the same bits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab02_clinic import all_waited, run_on_groups
from labkit.grade.lab02_ranks import Case, draw, run_ring
from labkit.measure.fabric import Fabric, replay

A_ROUND_A_SECOND = Fabric(alpha=1.0, beta=0.0, flops=1.0)
THREE, FOUR = (0, 1, 2), (0, 1, 2, 3)
# Most mistakes show on three ranks. Four come next, with groups that are not the world.
WORLDS = {
    3: (
        Case(
            members=THREE, shape=(6,), seed=11
        ),  # divides: here a wrong chunk has the right length
        Case(members=THREE, shape=(7,), seed=1),
        Case(members=THREE, shape=(5,), dtype=torch.int64, strided=True, seed=2),
        Case(members=THREE, shape=(1000,), dtype=torch.float32, seed=3),
    ),
    4: (
        Case(members=FOUR, shape=(7,), seed=4),
        Case(members=(1, 3), shape=(5,), seed=5),
        Case(members=FOUR, shape=(3, 4), dtype=torch.int32, strided=True, seed=6),
        Case(members=FOUR, shape=(1,), seed=7),
        Case(members=FOUR, shape=(0,), seed=8),
        Case(members=(0, 1), shape=(3,), seed=9),
        Case(members=(0,), shape=(5,), seed=10),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Ring:
    """What one collective of the ring must do.

    Args:
        kind: of its arguments, as run_ring has it.
        expected: its result from all ranks' inputs, a place in the group and the group's size.
        unsent: chunks that a rank never sends, one in each half, counted from its own place.
        turn: -1 sends to the rank below, 1 to the rank above.
    """

    kind: str
    expected: Callable[[list[torch.Tensor], int, int], torch.Tensor]
    unsent: tuple[int, ...]
    turn: int = -1

    @property
    def halves(self) -> int:
        return len(self.unsent)


def _own_chunk(parts: list[torch.Tensor], place: int, size: int) -> torch.Tensor:
    return _total(parts).reshape(-1).tensor_split(size)[place]


def _total(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(parts).sum(0, dtype=parts[0].dtype)


REDUCE_SCATTER = Ring(kind="reduce", unsent=(0,), expected=_own_chunk)
ALL_GATHER = Ring(kind="gather", unsent=(-1,), expected=lambda parts, place, size: parts[0])
ALL_REDUCE = Ring(kind="reduce", unsent=(0, -1), expected=lambda parts, place, size: _total(parts))
UPWARDS = replace(ALL_REDUCE, unsent=(0, 1), turn=1)


def _judge(ring: Ring, learner: Learner) -> Iterator[str]:
    for world_size, cases in WORLDS.items():
        if ring.kind == "gather":
            cases = tuple(replace(case, shape=(torch.Size(case.shape).numel(),)) for case in cases)
        by_rank = run_on_groups(learner, run_ring, world_size, ring.kind, cases)
        for index, case in enumerate(cases):
            seen = [by_rank[rank][index] for rank in case.members]
            for rank, outcome in zip(case.members, seen, strict=True):
                all_waited(outcome, rank=rank, case=case)
            _judge_results(ring, case, seen)
            _judge_messages(ring, case, seen)
            _judge_rounds(ring, case, [rank[index] for rank in by_rank])
    yield from ("values", "inputs", "neighbours", "messages", "bytes", "rounds")


def _judge_results(ring: Ring, case: Case, seen: Sequence[dict[str, Any]]) -> None:
    size = len(case.members)
    parts = [draw(case, 0 if ring.kind == "gather" else rank) for rank in case.members]
    for place, outcome in enumerate(seen):
        where: dict[str, Any] = {"rank": case.members[place], "case": case}
        expected = ring.expected(parts, place, size)
        got = outcome["result"]
        if not isinstance(got, torch.Tensor):
            raise CheckFailed("lab02.ring.nothing", got=type(got).__name__, **where)
        if ring is REDUCE_SCATTER and _is_of_another(parts, place, got):
            told = {"expected": expected.tolist(), "got": got.tolist()}
            raise CheckFailed("lab02.ring.owner", **told, **where)
        if got.shape != expected.shape:
            told = {"expected": list(expected.shape), "got": list(got.shape)}
            flat = got.numel() == expected.numel()
            raise CheckFailed(f"lab02.ring.{'flat' if flat else 'shape'}", **told, **where)
        cause = "" if torch.equal(got, expected) else _cause(ring, parts, place, expected, got)
        expect(f"lab02.ring.{cause or 'values'}", got, expected, **where)
        given = parts[place].tensor_split(size)[place] if ring.kind == "gather" else parts[place]
        expect("lab02.ring.input", outcome["inputs"][0], given, **where)
        if outcome["aliased"]:
            raise CheckFailed("lab02.ring.aliased", **where)
        if outcome["reused"]:
            raise CheckFailed("lab02.ring.reused", **where)
        expect("lab02.ring.again", outcome["again"], expected, **where)


def _cause(
    ring: Ring, parts: list[torch.Tensor], place: int, expected: torch.Tensor, got: torch.Tensor
) -> str:
    """The likeliest mistake behind wrong numbers of the right shape: the end of a message's key."""
    if ring.kind == "gather":
        same = torch.equal(got.sort().values, expected.sort().values)
        return "order" if same else "gathered"
    if torch.equal((got * len(parts)).round().to(expected.dtype), expected):
        return "mean"
    wrong = (got != expected).reshape(-1)
    if ring is REDUCE_SCATTER:
        parts = [part.reshape(-1).tensor_split(len(parts))[place] for part in parts]
    elif not wrong[: wrong.numel() // len(parts) * len(parts)].any():
        return "tail"
    ours = torch.stack(parts).reshape(len(parts), -1)[:, wrong]
    found, sums = got.reshape(-1)[wrong], expected.reshape(-1)[wrong]
    for cause, one_part in (
        ("alone", found),
        ("twice", found - sums),
        ("missing", sums - found),
    ):
        if (ours == one_part).any(0).all():
            return cause
    return "values"


def _is_of_another(parts: list[torch.Tensor], place: int, got: torch.Tensor) -> bool:
    """A chunk that is right, but on the wrong rank."""
    chunks = list(_total(parts).reshape(-1).tensor_split(len(parts)))
    own = chunks.pop(place)
    return not torch.equal(got, own) and any(torch.equal(got, chunk) for chunk in chunks)


def _judge_messages(ring: Ring, case: Case, seen: Sequence[dict[str, Any]]) -> None:
    size = len(case.members)
    length = torch.Size(case.shape).numel()
    chunks = [c.numel() * case.dtype.itemsize for c in torch.empty(length).tensor_split(size)]
    for place, outcome in enumerate(seen):
        where: dict[str, Any] = {"rank": case.members[place], "case": case}
        after = case.members[(place + ring.turn) % size]
        before = case.members[(place - ring.turn) % size]
        for call in outcome["calls"]:
            if call.operation not in ("send", "recv"):
                raise CheckFailed("lab02.ring.collective", got=call.operation, **where)
        sends = [call for call in outcome["calls"] if call.operation == "send"]
        key = "neighbours" if {call.peer for call in sends} != {before} else "direction"
        for call in outcome["calls"]:
            sending = call.operation == "send"
            told = {"told": "sent to" if sending else "received from", "got": call.peer}
            if call.peer != (allowed := after if sending else before):
                way = "downwards" if ring.turn < 0 else "upwards"
                raise CheckFailed(f"lab02.ring.{key}", expected=allowed, way=way, **told, **where)
        most = ring.halves * (size - 1)
        if len(sends) > most:
            raise CheckFailed("lab02.ring.messages", expected=most, got=len(sends), **where)
        least = sum(sum(chunks) - chunks[(place + c) % size] for c in ring.unsent)
        sent = sum(call.bytes_sent for call in sends)
        expect("lab02.ring.bytes", sent, least, payload=sum(chunks), **where)


def _judge_rounds(ring: Ring, case: Case, seen: Sequence[dict[str, Any] | None]) -> None:
    logs = [outcome["events"] if outcome else [] for outcome in seen]
    most = ring.halves * (len(case.members) - 1)
    rounds = round(replay(logs, A_ROUND_A_SECOND).step_s)
    if rounds > most:
        raise CheckFailed("lab02.ring.rounds", expected=most, got=rounds, case=case)


def check_reduce_scatter(learner: Learner) -> Iterator[str]:
    """Chunk p of the sum, on every rank."""
    yield from _judge(REDUCE_SCATTER, learner)


def check_all_gather(learner: Learner) -> Iterator[str]:
    """The vector that the ranks hold chunks of, on every rank."""
    yield from _judge(ALL_GATHER, learner)


def check_all_reduce(learner: Learner) -> Iterator[str]:
    """The sum, on every rank."""
    yield from _judge(ALL_REDUCE, learner)


def check_suspect(learner: Learner) -> Iterator[str]:
    """The sum, on every rank, by a ring that turns upwards."""
    yield from _judge(UPWARDS, learner)
