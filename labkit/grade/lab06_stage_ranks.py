"""What happens on the ranks while lab 06's executors are judged.

A rank decides one thing: a message to a rank that is no neighbour is refused when it is issued. For
the rest it runs the learner's function on a stage, writes down what happened in which order, and
returns that with loss and gradients; the parent compares.

The first column of what travels is the number of its micro-batch, which stages hand on as it is. So
a stage knows which micro-batch it has before it, whoever sent it. It also counts the micro-batches
of which autograd still holds something: each saved tensor says when it is let go.

Shapes: b rows of a micro-batch, D width.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from labkit.measure.call import Call
from labkit.measure.hook import subscribed

ROWS, WIDTH = 2, 5
STEP = 1 / 16  # between the numbers of two micro-batches, exact in binary
Pair = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step on one group.

    Args:
        members: global ranks of the group.
        actions: of each place in the group; None where the learner's function chooses.
    """

    told: str
    members: tuple[int, ...]
    num_micro_batches: int
    actions: tuple[tuple[Pair, ...], ...] | None = None

    def __str__(self) -> str:
        ranks = f"ranks {list(self.members)}" if len(self.members) > 1 else "one rank"
        return f"{self.told}, {ranks}, {self.num_micro_batches} micro-batches"


class NotANeighbour(RuntimeError):
    """A message for or from a rank that holds no stage next to this one."""


class _Held:
    """What autograd keeps in the place of a tensor; it goes when autograd lets go of it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()


class _Arrival(torch.autograd.Function):
    """The identity; writes down when backward arrives here."""

    @staticmethod
    def forward(context: Any, y: torch.Tensor, happened: list, number: int) -> torch.Tensor:
        context.happened, context.number = happened, number
        return y.view_as(y)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        context.happened.append(("B", context.number, 0, 0))
        return gradients[0], None, None


class Stage(nn.Module):
    """Some layers; each place of the group has weights, and a number of layers, of its own.

    `happened` gets (kind, micro-batch, rows, micro-batches held) at every forward and backward.
    """

    def __init__(self, place: int) -> None:
        super().__init__()
        self.happened: list[tuple[str, int, int, int]] = []
        self.live: Counter[int] = Counter()
        layers = [nn.Linear(WIDTH, WIDTH - 1) for _ in range(1 + place % 2)]
        self.layers = nn.ModuleList(layers).double()
        generator = torch.Generator().manual_seed(20 + place)
        for parameter in self.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tag = x.detach()[0, 0].item()
        number = round(tag / STEP) if abs(tag) < 1e6 else -1  # else it was never filled
        with saved_tensors_hooks(lambda saved: self._pack(saved, number), lambda h: h.tensor):
            for layer in self.layers:
                x = torch.cat([x[:, :1], torch.tanh(layer(x))], 1)  # [b, D]
        self.happened.append(("F", number, len(x), len(self.live)))
        return _Arrival.apply(x, self.happened, number)

    def _pack(self, saved: torch.Tensor, number: int) -> _Held:
        holder = _Held(saved)
        self.live[number] += 1
        weakref.finalize(holder, self._release, number)
        return holder

    def _release(self, number: int) -> None:
        self.live[number] -= 1
        if not self.live[number]:
            del self.live[number]


def loss_of(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The mean loss of one micro-batch."""
    return (y - target).square().mean()


def batch_of(num_micro_batches: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Inputs and targets, [b, D] a micro-batch."""
    generator = torch.Generator().manual_seed(7)
    shape = (num_micro_batches, ROWS, WIDTH)
    inputs, targets = (torch.randn(shape, generator=generator).double() for _ in range(2))
    inputs[:, :, 0] = STEP * torch.arange(num_micro_batches)[:, None]
    return list(inputs), list(targets)


def run_stages(
    world: dist.ProcessGroup, learner: Callable, cases: Sequence[Case]
) -> list[dict[str, Any] | None]:
    """Every case on this rank; None where it is not a member."""
    everybody = tuple(range(dist.get_world_size()))
    groups = {
        members: world if members == everybody else dist.new_group(list(members))
        for members in dict.fromkeys(case.members for case in cases)
    }
    return [
        _run(learner, case, groups[case.members]) if dist.get_rank() in case.members else None
        for case in cases
    ]


def _run(learner: Callable, case: Case, group: dist.ProcessGroup) -> dict[str, Any]:
    place, size, rank = dist.get_rank(group), len(case.members), dist.get_rank()
    neighbours = {r for r, p in zip(case.members, range(size), strict=True) if abs(p - place) == 1}
    calls: list[tuple[str, int | None, int]] = []
    waited: list[int] = []

    def issued(call: Call) -> None:
        if call.operation in ("send", "recv") and call.peer not in neighbours:
            raise NotANeighbour(f"{call.operation}, rank {rank} and rank {call.peer}")
        calls.append((call.operation, call.peer, call.payload_bytes))

    stage, (inputs, targets) = Stage(place), batch_of(case.num_micro_batches)
    own_inputs = [x.clone() for x in inputs] if place == 0 else None
    own_targets = targets if place == size - 1 else None
    boundary = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    told: Any = case.num_micro_batches if case.actions is None else list(case.actions[place])
    with subscribed(issued, lambda call: waited.append(call.sequence)):
        loss = learner(stage, told, own_inputs, own_targets, loss_of, boundary, group)
    return {
        "happened": stage.happened,
        "calls": calls,
        "unwaited": len(calls) - len(waited),
        "gradients": [None if p.grad is None else p.grad for p in stage.parameters()],
        "loss": float(loss) if isinstance(loss, (int, float, torch.Tensor)) else None,
        "changed": bool(boundary.any())
        or not all(map(torch.equal, own_inputs or [], inputs[: len(own_inputs or [])])),
    }
