"""What happens on the ranks while lab 03's DDP is judged.

A rank decides nothing. It runs the learner's class on a small network, writes down in one list what
happened in which order, and returns it with weights and gradients; the parent compares.

The network has what training meets: a tied weight, a frozen layer, a layer that only some ranks
use, and buffers. It writes "first layer" into the list when backward
arrives there, and "gradient" when a parameter has its own: by hooks that are older than the
learner's, so that what the learner does about a gradient comes after it.

Shapes: B batch, T sequence, D width, V words.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.measure.call import Call
from labkit.measure.hook import subscribed

WIDTHS = (6, 5, 7, 4, 8, 6)
NUM_WORDS = 11
LEARNING_RATE = 0.05


@dataclass(frozen=True, kw_only=True)
class Case:
    """Some steps of training on one group.

    Args:
        members: global ranks of the group.
        bucket_bytes: as the learner gets it.
        branches: for every step and micro-batch, the places in the group that use the branch.
        interrupted: an error leaves no_sync() before the first step.
    """

    told: str
    members: tuple[int, ...]
    bucket_bytes: int
    branches: tuple[tuple[tuple[int, ...], ...], ...]
    interrupted: bool = False

    def __str__(self) -> str:
        return f"{self.told}; ranks {list(self.members)}, buckets of {self.bucket_bytes} bytes"


class Arrival(torch.autograd.Function):
    """The identity; backward writes a name into a list."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, happened: list) -> torch.Tensor:
        context.happened = happened
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        context.happened.append(("first layer", 0))
        return gradients[0], None


class Network(nn.Module):
    """Words to logits; each seed has its own weights and buffers."""

    shift: torch.Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.happened: list[tuple[str, int]] = []
        self.embedding = nn.Embedding(NUM_WORDS, WIDTHS[0])
        layers = [nn.Linear(a, b) for a, b in pairwise(WIDTHS)]
        self.below = nn.ModuleList(layers[:2])
        self.branch = nn.Linear(WIDTHS[2], WIDTHS[2])
        self.above = nn.ModuleList(layers[2:])
        self.frozen = nn.Linear(WIDTHS[-1], WIDTHS[-1]).requires_grad_(False)
        self.head = nn.Linear(WIDTHS[-1], NUM_WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("shift", torch.zeros(WIDTHS[0]))
        self.register_buffer("steps", torch.tensor(seed))
        self.double()
        generator = torch.Generator().manual_seed(seed)
        for tensor in (*self.parameters(), self.shift):
            tensor.data.copy_(0.5 * torch.randn(tensor.shape, generator=generator))

    def forward(self, words: torch.Tensor, use_branch: bool) -> torch.Tensor:
        x = self.embedding(words) + self.shift  # [B, T, D]
        x = Arrival.apply(self.below[0](x), self.happened)
        x = torch.tanh(self.below[1](torch.tanh(x)))
        if use_branch:
            x = x + self.branch(x)
        for layer in self.above:
            x = torch.tanh(layer(x))
        return self.head(self.frozen(x))  # [B, T, V]


def trained(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that need a gradient, a tied one once."""
    return [p for p in module.parameters() if p.requires_grad]


def words_of(step: int, micro_batch: int, place: int) -> torch.Tensor:
    """The words of one rank in one micro-batch, [B, T + 1]."""
    generator = torch.Generator().manual_seed(10_000 + 100 * step + 10 * micro_batch + place)
    return torch.randint(0, NUM_WORDS, (2, 4), generator=generator)


def loss_of(model: Any, words: torch.Tensor, use_branch: bool) -> torch.Tensor:
    """Cross-entropy of the next word."""
    logits = model(words[:, :-1], use_branch)
    return cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


def train_cases(
    world: dist.ProcessGroup, learner: Callable, cases: Sequence[Case]
) -> list[dict[str, Any] | None]:
    """Every case on this rank; None where it is not a member."""
    rank = dist.get_rank()
    everybody = tuple(range(dist.get_world_size()))
    groups = {
        members: world if members == everybody else dist.new_group(list(members))
        for members in dict.fromkeys(case.members for case in cases)
    }
    return [
        _train(learner, case, groups[case.members]) if rank in case.members else None
        for case in cases
    ]


def _train(learner: Callable, case: Case, group: dist.ProcessGroup) -> dict[str, Any]:
    place = dist.get_rank(group)
    module = Network(seed=1 + place)
    for parameter in trained(module):
        parameter.register_post_accumulate_grad_hook(
            lambda p: module.happened.append(("gradient", 0))
        )
    model = learner(module, group, case.bucket_bytes)
    start = [p.detach().clone() for p in module.parameters()]
    buffers = [b.clone() for b in module.buffers()]
    if case.interrupted:
        try:
            with model.no_sync():
                raise KeyError(case.told)
        except KeyError:
            pass
    steps = [_step(model, module, case, number, place) for number in range(len(case.branches))]
    return {"start": start, "buffers": buffers, "steps": steps}


def _step(model: Any, module: Network, case: Case, number: int, place: int) -> dict[str, Any]:
    """One step as a training loop makes it, and what was seen of it."""
    happened = module.happened
    happened.clear()

    def issued(call: Call) -> None:
        happened.append((call.operation, call.payload_bytes))

    def waited(call: Call) -> None:
        happened.append(("wait", 0))

    micro_batches = case.branches[number]
    before = [p.detach().clone() for p in module.parameters()]
    with subscribed(issued, waited):
        for index, users in enumerate(micro_batches):
            last = index == len(micro_batches) - 1
            happened.append(("last" if last else "silent", 0))
            with nullcontext() if last else model.no_sync():
                words = words_of(number, index, place)
                (loss_of(model, words, place in users) / len(micro_batches)).backward()
        happened.append(("backward returned", 0))
        after = [p.detach().clone() for p in module.parameters()]
        model.finish()
        happened.append(("finished", 0))
    finished = [p.detach().clone() for p in module.parameters()]
    gradients = [None if p.grad is None else p.grad.clone() for p in trained(module)]
    with torch.no_grad():
        for parameter in trained(module):
            if parameter.grad is not None:
                parameter.sub_(LEARNING_RATE * parameter.grad)
    module.zero_grad()
    weights = [p.detach().clone() for p in module.parameters()]
    return {
        "happened": list(happened),
        "moved": [not torch.equal(a, b) for a, b in zip(before, after, strict=True)],
        "moved_late": [not torch.equal(a, b) for a, b in zip(after, finished, strict=True)],
        "gradients": gradients,
        "weights": weights,
    }
