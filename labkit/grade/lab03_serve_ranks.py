"""What happens on the ranks while lab 03's asynchronous parameter server is judged.

It runs on rank 1. Its workers are ranks 2 to 4 and follow a script, one step after another: rank 0
says whose turn it is, and gives up on a step that is not done in time. A message is complete only
when its receiver has asked for it, so a step that is done was seen by the server before the next.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from labkit.measure.log import EventLog
from labkit.parallel.parameter_server import LEAVE, PULL, PUSH

SERVER, WORKERS = 1, (2, 3, 4)
PATIENCE_S = 2.0  # a step takes milliseconds


class Stuck(Exception):
    """A step is not done: "number of the scenario, number of the step, whether serve returned"."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One run of the asynchronous server.

    Args:
        name: "leaves" and "again" have messages of their own.
        script: "2 pull, 3 ask, 2 push, 3 take": ranks, and what they do. An ask is a pull that does
            not wait, a take waits for it. In the end all leave that have not.
        start: every weight at the beginning.
        gradient: what a worker pushes for the weights that it counts in.
        free_pushes: pushes of each worker that follows no script.
    """

    name: str
    bound: int
    script: str = ""
    start: float = 0.0
    lr: float = 1.0
    gradient: float = 1.0
    free_pushes: int = 0

    @property
    def steps(self) -> list[tuple[int, str]]:
        written = [step.split() for step in self.script.split(", ") if step]
        steps = [(int(rank), action) for rank, action in written]
        gone = {rank for rank, action in steps if action == "leave"}
        return steps + [(rank, "leave") for rank in WORKERS if rank not in gone]

    def gradient_of(self, rank: int) -> torch.Tensor:
        """Counts in all updates at place 0, and in this worker's own at a place of its own."""
        gradient = torch.zeros(1 + len(WORKERS), dtype=torch.float64)
        gradient[[0, 1 + WORKERS.index(rank)]] = self.gradient
        return gradient

    def first_weights(self) -> torch.Tensor:
        """What the server begins with."""
        return torch.full((1 + len(WORKERS),), self.start, dtype=torch.float64)


def run_serve(
    world: dist.ProcessGroup, function: Callable, scenarios: Sequence[Scenario]
) -> list[dict[str, Any]]:
    """Every scenario on this rank, then a server without workers.

    Returns:
        On the server what serve returned, on a worker all weights that it was given.
    """
    rank, seen = dist.get_rank(), list[dict[str, Any]]()
    group, alone = dist.new_group([SERVER, *WORKERS]), dist.new_group([SERVER])
    for number, scenario in enumerate(scenarios):
        store = dist.PrefixStore(f"scenario {number}", world.get_group_store())
        if rank == SERVER:
            seen.append(_served(function, scenario, group))
            store.set("returned", "")
            store.wait(["over"])  # who returns too early must not end the world
        elif rank in WORKERS:
            work = _works_freely if scenario.free_pushes else _follows_the_script
            seen.append({"given": work(_Worker(scenario, group), store)})
        else:
            _directs(scenario, number, store)
    if rank == SERVER:
        seen.append(_served(function, scenarios[0], alone))
    return seen


def _served(function: Callable, scenario: Scenario, group: dist.ProcessGroup) -> dict[str, Any]:
    weights = scenario.first_weights()
    with EventLog() as log:
        result = function(weights, scenario.lr, scenario.bound, group)
    final = result[0] if isinstance(result, (tuple, list)) and result else None
    shared = isinstance(final, torch.Tensor) and final.data_ptr() == weights.data_ptr()
    return {"result": result, "weights": weights, "aliased": shared, "events": log.events}


class _Worker:
    """What labkit.parallel.parameter_server's worker sends, with pulls in two halves."""

    def __init__(self, scenario: Scenario, group: dist.ProcessGroup) -> None:
        self.scenario, self.group, self.rank = scenario, group, dist.get_rank()
        self.weights = torch.empty_like(scenario.first_weights())
        self.work: Any = None
        self.given: list[torch.Tensor] = []

    def ask(self) -> None:
        self._send(PULL)
        self.work = dist.irecv(self.weights, SERVER, self.group)

    def take(self) -> None:
        self.work.wait()
        self.given.append(self.weights.clone())

    def pull(self) -> None:
        self.ask()
        self.take()

    def push(self) -> None:
        self._send(PUSH)
        dist.send(self.scenario.gradient_of(self.rank), SERVER, self.group)

    def leave(self) -> None:
        self._send(LEAVE)

    def _send(self, request: int) -> None:
        dist.send(torch.tensor([request]), SERVER, self.group)


def _follows_the_script(worker: _Worker, store: dist.Store) -> list[torch.Tensor]:
    for number, (rank, action) in enumerate(worker.scenario.steps):
        if rank == worker.rank:
            store.wait([f"go {number}"])
            getattr(worker, action)()
            store.set(f"done {number}", "")
    return worker.given


def _works_freely(worker: _Worker, store: dist.Store) -> list[torch.Tensor]:
    store.wait(["go 0"])  # the server may still serve the scenario before
    for _ in range(worker.scenario.free_pushes):
        worker.pull()
        worker.push()
    worker.leave()
    return worker.given


def _directs(scenario: Scenario, number: int, store: dist.Store) -> None:
    """Give the word for one step after another.

    Raises:
        Stuck: if a step, or in the end serve, takes too long.
    """
    if scenario.free_pushes:
        store.set("go 0", "")
    steps = [] if scenario.free_pushes else scenario.steps
    for step in range(len(steps)):
        store.set(f"go {step}", "")
        _await(store, f"done {step}", number, step)
    _await(store, "returned", number, len(steps))
    store.set("over", "")


def _await(store: dist.Store, key: str, number: int, step: int) -> None:
    try:
        store.wait([key], timedelta(seconds=PATIENCE_S))
    except dist.DistStoreError:
        raise Stuck(f"{number} {step} {store.check(['returned'])}") from None
