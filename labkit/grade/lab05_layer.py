"""Lab 05: how any layer is judged, against the serial one.

The order in which things are looked at is the order in which a learner can mend them:

1. the group of every collective, and whether it was waited for;
2. shards: names, shapes and values of the parameters, bytes held, no whole tensor kept alive;
3. the output, then the gradients of inputs and of shards, with inputs left as they were;
4. collectives forward and backward: which, how many, of how many bytes;
5. a second run.

A wrong tensor is compared with what the other ranks of its group have. If all of them together make
the right one, a sum is missing; if it is tp times the right one, there is a sum too many.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner, _short, expect
from labkit.grade.lab05_ranks import Trial, run_layers
from labkit.grade.lab05_seen import (
    ATOL,
    Cause,
    Seen,
    Want,
    close,
    judge_shards,
    no_cause,
    told_calls,
)

TIMEOUT_S = 6.0  # most hangs are told at once; right answers have time, whatever else runs here


Case = tuple[Trial, list[Want]]  # with the wants of its ranks


def judge_layers(
    learner: Learner,
    cases: Sequence[Case],
    cause: Cause = no_cause,
    program: Callable = run_layers,
) -> list[Seen]:
    """Run the learner's layer in every trial and judge it, the smallest world first.

    Raises:
        CheckFailed: with a key of the exercise's where `cause` knows one, else of lab05.layer.
    """
    everything = []
    for world_size in sorted({trial.world_size for trial, _ in cases}):
        here = [case for case in cases if case[0].world_size == world_size]
        trials = [trial for trial, _ in here]
        by_rank = learner.run(program, world_size, trials, timeout=TIMEOUT_S)
        everything += judge_records(by_rank, here, cause)
    return everything


def judge_records(
    by_rank: Sequence[Sequence[dict[str, Any]]], cases: Sequence[Case], cause: Cause
) -> list[Seen]:
    """Judge what the ranks brought back, by rank and trial; returns it, trial by trial."""
    everything = []
    for index, (trial, wants) in enumerate(cases):
        records = [record[index] for record in by_rank]
        ranks = []
        for rank, got in enumerate(records):
            members = trial.members(rank)
            ranks.append(
                Seen(
                    trial=trial,
                    rank=rank,
                    want=wants[rank],
                    got=got,
                    group=tuple(records[m] for m in members),
                    wants=tuple(wants[m] for m in members),
                )
            )
        for step in (groups_and_waits, judge_shards, _results, _traffic, _again):
            for seen in ranks:
                step(seen, cause)
        everything += ranks
    return everything


def groups_and_waits(seen: Seen, cause: Cause = no_cause) -> None:
    """Every collective is on a group that was given, and complete when the call returns."""
    trial, rank = seen.trial, seen.rank
    given = {"tp": trial.members(rank)}
    if trial.replicas:
        given["replicas"] = trial.sharers(rank)
    for call in (*seen.got["forward"], *seen.got["backward"]):
        if given.get(call.axis) != call.ranks:
            told = {"operation": call.operation, "got": f"{call.axis} {list(call.ranks)}"}
            expected = f"tp {list(given['tp'])}"
            raise CheckFailed("lab05.layer.other_group", expected=expected, **told, **seen.where)
    for operation in seen.got["unwaited"]:
        raise CheckFailed("lab05.layer.unwaited", operation=operation, **seen.where)


def _results(seen: Seen, cause: Cause) -> None:
    want, got = seen.want, seen.got
    judge_tensor("output", got["output"], want.output, seen, cause)
    if not got["attached"]:
        raise CheckFailed("lab05.layer.detached", **seen.where)
    left_alone(seen)
    for number, grad in enumerate(want.input_grads):
        if grad is not None:
            judge_tensor("input_grad", got["input_grads"][number], grad, seen, cause, number)
    for name, grad in want.grads.items():
        judge_tensor("weight_grad", got["grads"][name], grad, seen, cause, name)


def left_alone(seen: Seen) -> None:
    """Inputs and the gradient that came in are what they were."""
    part = seen.trial.parts[seen.rank]
    for after, before in zip(seen.got["inputs"], part.inputs, strict=True):
        expect("lab05.layer.input_changed", after, before, **seen.where)
    expect("lab05.layer.grad_changed", seen.got["grad"], part.grad, **seen.where)


def judge_tensor(
    what: str, got: Any, expected: torch.Tensor, seen: Seen, cause: Cause, name: Any = ""
) -> None:
    """One tensor of one rank; `what` is output, input_grad or weight_grad.

    Args:
        name: of the parameter, or number of the input.
    """
    where = seen.where | {"off": "all of it"} | ({"name": name} if what == "weight_grad" else {})
    if got is None:
        key = cause(f"{what} {name}", seen) or "lab05.layer.no_grad"
        where["name"] = name if what == "weight_grad" else "x"
        raise CheckFailed(key, expected=_short(expected), got=None, **where)
    if not isinstance(got, torch.Tensor):
        raise CheckFailed("run.type", expected="a tensor", got=type(got).__name__)
    key = ""
    if got.shape != expected.shape:
        key = cause(f"{what} {name}".strip(), seen) or "lab05.layer.shape"
        told = {"expected": list(expected.shape), "got": list(got.shape)}
        raise CheckFailed(key, what=what.replace("_", " "), **told, **where)
    if not bool(((got - expected).abs() <= ATOL).all()):
        key = cause(f"{what} {name}".strip(), seen)
        relation = _relation(got, expected, of_group(seen, what, name), seen.trial.tp)
        key = key or f"lab05.layer.{what}{relation}"
        where["off"] = f"{float((got - expected).abs().max()):.1e}"
    expect(key or "lab05.layer.output", got, expected, atol=ATOL, **where)


def of_group(seen: Seen, what: str, name: Any = "") -> list[Any]:
    """The same tensor on all ranks of the group."""
    if what == "output":
        return [got["output"] for got in seen.group]
    field = "input_grads" if what == "input_grad" else "grads"
    return [got[field][name] for got in seen.group]


def _relation(got: torch.Tensor, expected: torch.Tensor, group: list[Any], tp: int) -> str:
    """How a wrong tensor comes from the right one: the end of a message's key."""
    if tp == 1:
        return ""
    if close(got, tp * expected):
        return "_times"
    if close(got * tp, expected):
        return "_divided"  # before the parts: equal shares of a mean add up as well
    alike = all(isinstance(x, torch.Tensor) and x.shape == got.shape for x in group)
    return "_part" if alike and close(sum(group), expected) else ""


def _traffic(seen: Seen, cause: Cause) -> None:
    """Collectives of both passes; a group of one may do without."""
    for when, wanted in (("forward", seen.want.forward), ("backward", seen.want.backward)):
        if seen.trial.tp == 1 or wanted is None:
            continue
        calls = [(c.operation, c.axis, c.payload_bytes) for c in seen.got[when]]
        if Counter(_shared_as_one(calls, seen)) != Counter(wanted):
            key = cause(f"calls {when}", seen) or "lab05.layer.calls"
            told = {"expected": told_calls(wanted), "got": told_calls(calls)}
            raise CheckFailed(key, when=when, **told, **seen.where)


def _shared_as_one(calls: list[tuple[str, str, int]], seen: Seen) -> list[tuple[str, str, int]]:
    """Calls over replicas as one of all their bytes: they may come together or one by one."""
    rest = [call for call in calls if call[1] != "replicas"]
    shared = sum(size for _, axis, size in calls if axis == "replicas")
    many = seen.trial.replicas > 1 and shared
    return [*rest, ("all_reduce", "replicas", shared)] if many else rest


def _again(seen: Seen, cause: Cause) -> None:
    """The same layer on the same inputs gives the same, gradients too."""
    where = seen.where
    expect("lab05.layer.again", seen.got["again"], seen.want.output, atol=ATOL, **where)
    for name, grad in seen.want.grads.items():
        expect("lab05.layer.again", seen.got["grads_again"][name], grad, atol=ATOL, **where)
