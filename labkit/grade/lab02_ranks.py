"""What happens on the ranks while lab 02 is judged: the learner's function runs and is watched.

A rank decides nothing. It returns plain data (results; the input, calls and events after the first
of two runs); the parent, which never runs a line of the learner's, compares.

One world serves many cases. The groups of all cases are made first, on every rank in one order.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from labkit.comm.handmade import ring_all_reduce, tree_all_reduce
from labkit.measure.events import Event
from labkit.measure.ledger import CommLedger
from labkit.measure.log import EventLog

ALGORITHMS = {"ring": ring_all_reduce, "tree": tree_all_reduce}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call of the learner's function: who takes part, on what.

    Args:
        members: global ranks of the group.
        shape: of each rank's tensor.
        strided: the tensor is every third element of a larger one.
        seed: of the numbers; each rank draws its own.
    """

    members: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    strided: bool = False
    seed: int = 20

    def __str__(self) -> str:
        stride = ", every third element of a larger tensor" if self.strided else ""
        kind = str(self.dtype).removeprefix("torch.")
        return f"ranks {list(self.members)}, {kind} {list(self.shape)}{stride}"


def draw(case: Case, rank: int) -> torch.Tensor:
    """The numbers of one rank: whole, so that their sum is the same in every order."""
    generator = torch.Generator().manual_seed(1000 * case.seed + rank)
    return torch.randint(-99, 100, case.shape, generator=generator).to(case.dtype)


def lay_out(x: torch.Tensor, strided: bool) -> torch.Tensor:
    """The same numbers; where asked, as every third element of a larger tensor."""
    if not strided:
        return x.clone()
    larger = x.new_zeros(*x.shape, 3)
    larger[..., 1] = x
    return larger[..., 1]


def watch(
    function: Callable, inputs: Sequence[torch.Tensor], rest: Sequence[Any], case: str
) -> dict[str, Any]:
    """Run the function twice, and keep what can be seen from outside."""
    try:
        with EventLog() as log, CommLedger() as ledger:
            result = function(*inputs, *rest)
        first, after = _copied(result), _copied(tuple(inputs))
        again = function(*inputs, *rest)
    except NotImplementedError:
        raise
    except Exception as error:
        error.args = (f"{error} (with {case})",)  # what the parent shows
        raise
    taken = {_memory(x) for x in (*inputs, *_tensors(result)) if x.numel()}
    of_inputs = {_memory(x) for x in inputs if x.numel()}
    return {
        "result": first,
        "again": again,
        "inputs": after,
        "aliased": any(_memory(x) in of_inputs for x in _tensors(result) if x.numel()),
        "reused": any(_memory(x) in taken for x in _tensors(again) if x.numel()),
        "calls": ledger.ops,
        "events": log.events,
    }


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return tuple(map(_copied, value)) if isinstance(value, (tuple, list)) else value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def run_ring(
    world: dist.ProcessGroup, function: Callable, kind: str, cases: Sequence[Case]
) -> list[dict[str, Any] | None]:
    """Every case on this rank; None where it is not a member.

    Args:
        kind: "gather" calls function(chunk, num_elements, group), others function(x, group).
    """
    rank, groups = dist.get_rank(), _groups(world, cases)
    seen: list[dict[str, Any] | None] = []
    for case in cases:
        if rank not in case.members:
            seen.append(None)
            continue
        x, rest = draw(case, rank), [groups[case.members]]
        if kind == "gather":
            whole = draw(case, 0)  # the same on every rank
            x = whole.tensor_split(len(case.members))[case.members.index(rank)]
            rest.insert(0, whole.numel())
        seen.append(watch(function, [lay_out(x, case.strided)], rest, str(case)))
    return seen


def _groups(world: dist.ProcessGroup, cases: Sequence[Case]) -> dict[tuple[int, ...], Any]:
    everybody = tuple(range(dist.get_world_size()))
    return {
        members: world if members == everybody else dist.new_group(list(members))
        for members in dict.fromkeys(case.members for case in cases)
    }


def run_swap(
    world: dist.ProcessGroup, function: Callable, cases: Sequence[Case]
) -> list[dict[str, Any] | None]:
    """As run_ring, and what run_grid adds."""
    return [seen and seen | _named(function) for seen in run_ring(world, function, "swap", cases)]


def run_mean(
    world: dist.ProcessGroup, function: Callable, amounts: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """function(losses, group) once for every row of amounts: how many losses each rank has."""
    rank, seen = dist.get_rank(), []
    for row in amounts:
        case = Case(members=tuple(range(len(row))), shape=(row[rank],))
        told = f"{list(row)} losses on the ranks"
        seen.append(watch(function, [draw(case, rank)], [world], told) | _named(function))
    return seen


def run_grid(
    world: dist.ProcessGroup, function: Callable, num_columns: int, names: tuple[str, str]
) -> dict[str, Any]:
    """function(x, row, column) on a grid of ranks, row by row.

    Args:
        names: of the two kinds of groups, as the ledger and the mismatch detector tell them.
    """
    rank, members = dist.get_rank(), tuple(range(dist.get_world_size()))
    grid = torch.tensor(members).view(-1, num_columns)
    groups = {}
    for name, lines in zip(names, (grid, grid.T), strict=True):
        for line in lines.tolist():  # every rank makes every group
            group = dist.new_group(line, group_desc=name)
            if rank in line:
                groups[name] = group
    x = draw(Case(members=members, shape=(5,)), rank)
    told = f"{len(grid)} by {num_columns} ranks"
    return watch(function, [x], list(groups.values()), told) | _named(function)


def _named(function: Callable) -> dict[str, Any]:
    """Waits that cure no deadlock, named anywhere in the function's code."""
    scope = getattr(function, "__globals__", {})
    codes, found = [getattr(function, "__code__", None)], []
    while codes:
        code = codes.pop()
        for name in getattr(code, "co_names", ()):
            if name == "sleep" or scope.get(name) is time.sleep:
                found.append(name)
        codes += [const for const in getattr(code, "co_consts", ()) if hasattr(const, "co_names")]
    return {"sleeps": found}


def run_prices(
    world: dist.ProcessGroup, function: Callable, questions: Sequence[tuple]
) -> list[Any]:
    """The learner's answer to every question: a tuple of arguments."""
    return [function(*question) for question in questions]


def record_rings_and_trees(
    world: dist.ProcessGroup, sizes: Sequence[int], lengths: Sequence[int]
) -> dict[str, list[Event]]:
    """This rank's events of real runs on the first ranks of the world; no learner takes part.

    Returns:
        Under "ring 4 120": the algorithm, its ranks, its float64 elements.
    """
    rank, logs = dist.get_rank(), {}
    for size in sizes:
        group = dist.new_group(list(range(size)))
        for name, all_reduce in ALGORITHMS.items():
            for length in lengths:
                with EventLog() as log:
                    if rank < size:
                        all_reduce(torch.ones(length, dtype=torch.float64), group)
                logs[f"{name} {size} {length}"] = log.events
    return logs
