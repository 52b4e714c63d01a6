"""Lab 02: the checks of the deadlock clinic, and of the all-reduce on two levels.

A repaired program must end, give every rank the right numbers, still communicate (the ledger shows
the messages or collectives of every rank) and get no help from a sleep or a barrier.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab02_ranks import Case, draw, run_grid, run_mean, run_swap
from labkit.measure.events import Launch, Wait

SWAPS = {
    2: (Case(members=(0, 1), shape=(3,), seed=1),),
    4: (
        Case(members=(0, 1, 2, 3), shape=(1000,), dtype=torch.int64, seed=2),
        Case(members=(2, 3), shape=(1,), seed=3),
    ),
}
# Losses of each rank. The first world has one case: who leaves early there leaves the world, and
# nothing that comes later can pass for its part.
AMOUNTS = {2: ((3, 0),), 3: ((0, 2, 5), (1, 0, 4), (0, 0, 2))}
GRIDS = ((2, 2), (1, 2))
TIMEOUT_S = 6.0  # most hangs are told at once; right answers have time, whatever else runs here


def check_swap(learner: Learner) -> Iterator[str]:
    """Every pair exchanges its tensors by one message in each direction."""
    for world_size, cases in SWAPS.items():
        by_rank = run_on_groups(learner, run_swap, world_size, cases)
        for index, case in enumerate(cases):
            for place, rank in enumerate(case.members):
                seen = by_rank[rank][index]
                where: dict[str, Any] = {"rank": rank, "case": case}
                partner = case.members[place ^ 1]
                _no_waits(seen, **where)
                all_waited(seen, **where)
                expect("lab02.swap.values", seen["result"], draw(case, partner), **where)
                _left_alone(seen, draw(case, rank), **where)
                operations = sorted(call.operation for call in seen["calls"])
                expect("lab02.swap.messages", operations, ["recv", "send"], **where)
    yield from ("values", "messages", "no_waiting")


def check_mean_loss(learner: Learner) -> Iterator[str]:
    """The mean over all losses, from an all-reduce that every rank takes part in."""
    for world_size, amounts in AMOUNTS.items():
        by_rank = run_on_groups(learner, run_mean, world_size, amounts)
        for index, row in enumerate(amounts):
            members = tuple(range(world_size))
            parts = [draw(Case(members=members, shape=(n,)), r) for r, n in enumerate(row)]
            mean = float(torch.cat(parts).mean())
            for rank in members:
                seen = by_rank[rank][index]
                where: dict[str, Any] = {"rank": rank, "amounts": list(row)}
                case = f"{list(row)} losses on the ranks"
                _no_waits(seen, rank=rank, case=case)
                all_waited(seen, rank=rank, case=case)
                _one_number(seen["result"], mean, parts, **where)
                _left_alone(seen, parts[rank], rank=rank, case=case)
                operations = {call.operation for call in seen["calls"]}
                if "all_reduce" not in operations:
                    raise CheckFailed("lab02.mean_loss.deleted", **where)
    yield from ("values", "collective", "no_waiting")


def _one_number(
    result: Any, mean: float, parts: Sequence[torch.Tensor], rank: int, amounts: list[int]
) -> None:
    numel = result.numel() if isinstance(result, torch.Tensor) else 1
    if not isinstance(result, (torch.Tensor, float, int)) or numel != 1:
        raise CheckFailed("run.type", expected="one number", got=type(result).__name__)
    got, where = float(result), {"rank": rank, "amounts": amounts}
    if abs(got - mean) <= 1e-12 * max(1.0, abs(mean)):
        return
    of_ranks = [float(part.mean()) if len(part) else 0.0 for part in parts]
    likely = {
        "local": of_ranks[rank],
        "of_means": sum(of_ranks) / len(parts),
        "of_some_means": sum(of_ranks) / max(1, sum(n > 0 for n in amounts)),
        "empty_counted": float(torch.cat(list(parts)).sum()) / sum(max(1, n) for n in amounts),
    }
    causes = [key for key, value in likely.items() if abs(got - value) <= 1e-9]
    cause = causes[0].replace("of_some_means", "of_means") if causes else "values"
    raise CheckFailed(f"lab02.mean_loss.{cause}", expected=f"{mean:.6g}", got=f"{got:.6g}", **where)


def check_grid_sums(learner: Learner) -> Iterator[str]:
    """Sums over the row and the column of a grid, one all-reduce on each."""
    for num_rows, num_columns in GRIDS:
        members = tuple(range(num_rows * num_columns))
        case = Case(members=members, shape=(5,))
        parts = torch.stack([draw(case, rank) for rank in members])
        grid = parts.view(num_rows, num_columns, -1)
        by_rank = run_on_groups(learner, run_grid, len(members), num_columns, ("row", "column"))
        for rank, seen in enumerate(by_rank):
            where: dict[str, Any] = {
                "rank": rank,
                "case": f"{num_rows} rows and {num_columns} columns of ranks",
            }
            row, column = divmod(rank, num_columns)
            _no_waits(seen, **where)
            all_waited(seen, **where)
            sums = {"row": grid[row].sum(0), "column": grid[:, column].sum(0)}
            _pair_of_sums(
                seen["result"], sums, {"all": grid.sum((0, 1)), "alone": parts[rank]}, where
            )
            _left_alone(seen, parts[rank], **where)
            axes = sorted(call.axis for call in seen["calls"] if call.operation == "all_reduce")
            if axes != ["column", "row"]:
                got = ", ".join(axes) or "nothing"
                raise CheckFailed("lab02.grid_sums.collectives", got=got, **where)
    yield from ("values", "collectives", "no_waiting")


def _pair_of_sums(
    result: Any,
    sums: dict[str, torch.Tensor],
    likely: dict[str, torch.Tensor],
    where: dict[str, Any],
) -> None:
    """Two sums in their order; `likely` are wrong results that have a message of their own."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise CheckFailed("run.type", expected="two tensors", got=type(result).__name__)
    for got, (name, expected) in zip(result, sums.items(), strict=True):
        cause = "values"
        if isinstance(got, torch.Tensor) and not torch.equal(got, expected):
            causes = [key for key, value in likely.items() if torch.equal(got, value)]
            cause = (*causes, "values")[0]
        expect(f"lab02.grid_sums.{cause}", got, expected, name=name, **where)


def check_two_levels(learner: Learner) -> Iterator[str]:
    """The sum over hosts, where only a share of it crosses from host to host.

    On two hosts of two ranks a ring sends the whole payload inside, and its chunk between,
    whichever way it turns.
    """
    for num_hosts, ranks_per_host in ((2, 2), (2, 1)):
        members = tuple(range(num_hosts * ranks_per_host))
        case = Case(members=members, shape=(5,))
        parts = torch.stack([draw(case, rank) for rank in members])
        chunks = torch.empty(5).tensor_split(ranks_per_host)
        names = ("inside", "between")
        by_rank = run_on_groups(learner, run_grid, len(members), ranks_per_host, names)
        for rank, seen in enumerate(by_rank):
            where: dict[str, Any] = {
                "rank": rank,
                "case": f"{num_hosts} hosts of {ranks_per_host} ranks",
            }
            all_waited(seen, **where)
            expect("lab02.two_levels.values", seen["result"], parts.sum(0), **where)
            _left_alone(seen, parts[rank], **where)
            sent = dict.fromkeys(names, 0)
            for call in seen["calls"]:
                sent[call.axis] = sent.get(call.axis, 0) + int(call.bytes_sent)
            between = 8 * len(chunks[rank % ranks_per_host])
            inside = 8 * 5 * (ranks_per_host - 1)
            expect("lab02.two_levels.between", sent.pop("between"), between, **where)
            expect("lab02.two_levels.inside", sent.pop("inside"), inside, **where)
            expect("lab02.two_levels.elsewhere", sent, {}, **where)
    yield from ("values", "between", "inside")


def _no_waits(seen: dict[str, Any], **where: Any) -> None:
    """Time that passes repairs nothing, and a barrier only moves the place where ranks wait."""
    barriers = [call.operation for call in seen["calls"] if call.operation == "barrier"]
    for name in [*seen["sleeps"], *barriers]:
        raise CheckFailed("lab02.clinic.waits", got=name, **where)


def _left_alone(seen: dict[str, Any], given: torch.Tensor, **where: Any) -> None:
    expect("lab02.ring.input", seen["inputs"][0], given, **where)
    if seen["aliased"]:
        raise CheckFailed("lab02.ring.aliased", **where)


def run_on_groups(learner: Learner, program: Callable, world_size: int, *args: Any) -> list[Any]:
    """learner.run, with a message of its own for a peer that is not in the group."""
    try:
        return learner.run(program, world_size, *args, timeout=TIMEOUT_S)
    except CheckFailed as failure:
        told = str(failure.values.get("error", ""))
        if failure.key != "run.raised" or "not part of group" not in told:
            raise
        error = re.sub(" <torch.*?>", "", told).partition(": ")[2]
        raise CheckFailed("lab02.ring.peer", rank=failure.values["rank"], error=error) from None


def all_waited(seen: dict[str, Any], **where: Any) -> None:
    """Whoever returns before a message is complete returns what may yet change."""
    waited = {event.id for event in seen["events"] if isinstance(event, Wait)}
    for event in seen["events"]:
        if isinstance(event, Launch) and event.id not in waited:
            raise CheckFailed("lab02.ring.unwaited", operation=event.operation, **where)
