"""What happens on the ranks while lab 04 is judged: the learner's object runs and is watched.

A rank decides nothing. It returns plain data: weights, outputs, bytes held and calls, by step; the
parent, which never runs a line of the learner's, compares. All numbers are float64, and every draw
is a function of a seed, a step and a rank, so that parent and rank draw the same.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.grade.lab04_meter import Meter, Optimizers, storage_bytes
from labkit.measure.ledger import CommLedger

NUMBER = 8  # bytes
# A large eps makes the size of a gradient count: AdamW is almost blind to it otherwise.
SETTINGS: dict[str, Any] = {"lr": 0.05, "betas": (0.8, 0.9), "eps": 0.1, "weight_decay": 0.1}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training run.

    Args:
        members: global ranks of the group.
        shapes: of the parameters.
        num_steps: optimizer steps.
        num_micro_batches: backward passes before each.
        unused: number of a parameter that gets no gradient on any rank; -1 for none.
    """

    members: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    num_steps: int = 2
    num_micro_batches: int = 1
    unused: int = -1
    seed: int = 40

    def __str__(self) -> str:
        told = f"ranks {list(self.members)}, sizes {[list(shape) for shape in self.shapes]}"
        if self.num_micro_batches > 1:
            told += f", {self.num_micro_batches} micro-batches"
        return told + (f", parameter {self.unused} without a gradient" * (self.unused >= 0))

    @property
    def lengths(self) -> list[int]:
        """Elements of each parameter."""
        return [torch.Size(shape).numel() for shape in self.shapes]

    @property
    def share_bytes(self) -> int:
        """A rank's share of the parameters, each padded by itself: the most that it may be."""
        return NUMBER * sum(-(-length // len(self.members)) for length in self.lengths)


def draw(case: Case, *place: int) -> list[torch.Tensor]:
    """One tensor a shape; `place` is such as (step, rank), nothing for the first weights."""
    seed = 1000003 * case.seed + sum((n + 1) * 101**i for i, n in enumerate(place))
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in case.shapes]


def gradients(case: Case, step: int, rank: int) -> list[torch.Tensor | None]:
    """This rank's gradients of a step, where no model computes them."""
    drawn = draw(case, step, rank)
    return [None if i == case.unused else g for i, g in enumerate(drawn)]


def loss_of(parameters: Sequence[torch.Tensor], batch: Sequence[torch.Tensor]) -> torch.Tensor:
    """A loss that uses parameter after parameter, so that backward finishes the last one first."""
    hidden = torch.ones((), dtype=torch.float64)
    for parameter, x in zip(parameters, batch, strict=True):
        hidden = torch.tanh(hidden + (parameter * x).mean())
    return hidden.square()


def run_step_only(
    world: dist.ProcessGroup, make: Callable, cases: Sequence[Case]
) -> list[dict[str, Any] | None]:
    """make(parameters, make_optimizer, group) and its step(), on gradients that are there."""
    return list(on_groups(world, cases, partial(_step_only, make)))


def _step_only(make: Callable, case: Case, group: dist.ProcessGroup, rank: int) -> dict[str, Any]:
    parameters, optimizers = [nn.Parameter(w) for w in draw(case)], Optimizers(**SETTINGS)
    meter, weights, calls, most = Meter(), [], [], 2 * case.share_bytes
    with meter:
        learner = make(parameters, optimizers, group)
    for step in range(case.num_steps):
        for parameter, gradient in zip(parameters, gradients(case, step, rank), strict=True):
            parameter.grad = gradient
        with CommLedger() as ledger, meter:
            learner.step()
        calls.append(ledger.ops)
        weights.append(_flat(parameters))
    state = optimizers.state()
    theirs = [p.grad for p in parameters if p.grad is not None]
    return {
        "weights": weights,
        "calls": calls,
        "optimizer_bytes": storage_bytes(state),
        "kept_bytes": meter.live_bytes(most, but=[*parameters, *theirs, *state]),
    }


def run_backward(
    world: dist.ProcessGroup, make: Callable, cases: Sequence[Case]
) -> list[dict[str, Any] | None]:
    """make(parameters, make_optimizer, group), backward passes of the check's own, and step()."""
    return list(on_groups(world, cases, partial(_backward, make)))


def _backward(make: Callable, case: Case, group: dist.ProcessGroup, rank: int) -> dict[str, Any]:
    parameters, optimizers = [nn.Parameter(w) for w in draw(case)], Optimizers(**SETTINGS)
    meter, weights, calls, most = Meter(parameters), [], [], 2 * case.share_bytes
    whole_bytes, between_bytes = 0, 0
    with meter:
        learner = make(parameters, optimizers, group)
    for step in range(case.num_steps):
        with CommLedger() as ledger:
            for micro in range(case.num_micro_batches):
                batch = draw(case, step, rank, micro)
                with meter:
                    loss_of(parameters, batch).backward()
                whole = [p.grad for p in parameters if p.grad is not None]
                whole_bytes = max(whole_bytes, storage_bytes(whole))
                but = [*parameters, *batch, *whole, *optimizers.state()]
                held = meter.live_bytes(most, but, moment="between")
                between_bytes = max(between_bytes, held)
            del batch, whole, but
            with meter:
                learner.step()
        calls.append(ledger.ops)
        weights.append(_flat(parameters))
    state = optimizers.state()
    return {
        "weights": weights,
        "calls": calls,
        "optimizer_bytes": storage_bytes(state),
        "kept_bytes": meter.live_bytes(most, but=[*parameters, *state]),
        "whole_bytes": whole_bytes,
        "between_bytes": between_bytes,
        "most_gradient_bytes": meter.most_gradient_bytes,
    }


def on_groups(
    world: dist.ProcessGroup, cases: Sequence[Any], run: Callable
) -> Iterator[dict[str, Any] | None]:
    """run(case, group, rank) for every case, which has members; None where this rank is none."""
    rank, everybody = dist.get_rank(), tuple(range(dist.get_world_size()))
    groups = {
        members: world if members == everybody else dist.new_group(list(members))
        for members in dict.fromkeys(case.members for case in cases)
    }
    for case in cases:
        if rank not in case.members:
            yield None
            continue
        with telling(str(case)):
            seen = run(case, groups[case.members], rank)
        yield seen


@contextmanager
def telling(case: str) -> Iterator[None]:
    """Add the case to what an error says: the parent shows it."""
    try:
        yield
    except NotImplementedError:
        raise
    except Exception as error:
        error.args = (f"{error} (with {case})",)
        raise


def _flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
