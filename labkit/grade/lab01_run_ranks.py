"""What happens on a rank while lab 01's recomputation is judged.

A layer says when it runs forward. What autograd holds at the end of the forward pass is asked from
outside, by hooks on everything that is saved, and so is the most that is alive at one time in
backward, by looking at every torch operation. Nothing here asks the learner's code.

Shapes: R rows, D width, F hidden width.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import dropout, linear
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.measure.memory import SavedActivations

ROWS, WIDTH, HIDDEN = 16, 8, 64
SEED = 3
# What a layer keeps: its input, tanh's result, dropout's mask and its result.
LAYER_BYTES = 8 * ROWS * (WIDTH + 3 * HIDDEN)
BOUNDARY_BYTES = 8 * ROWS * WIDTH


@dataclass(frozen=True, kw_only=True)
class Case:
    """A stack of layers, and how it is cut.

    Args:
        told: what the learner's function gets as its third argument.
        lengths: of the segments that it should make.
        input_needs_gradient: False for the first layer of a model, whose input comes from data.
    """

    told: Any
    lengths: tuple[int, ...]
    input_needs_gradient: bool = True

    def __str__(self) -> str:
        what = f"segments of {list(self.lengths)} layers"
        return what if self.input_needs_gradient else f"{what}, an input without gradient"

    @property
    def num_layers(self) -> int:
        return sum(self.lengths)


class Layer(nn.Module):
    """x + W2 drop(tanh(W1 x)); appends its place to `happened` whenever it runs."""

    def __init__(self, place: int, happened: list[int]) -> None:
        super().__init__()
        self.place, self.happened = place, happened
        generator = torch.Generator().manual_seed(40 + place)
        into, out = (
            torch.randn(shape, generator=generator, dtype=torch.float64) / 4
            for shape in ((HIDDEN, WIDTH), (WIDTH, HIDDEN))
        )
        self.into, self.out = nn.Parameter(into), nn.Parameter(out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.happened.append(self.place)
        hidden = dropout(torch.tanh(linear(x, self.into)), 0.25)  # [R, F]
        return x + linear(hidden, self.out)  # [R, D]


class Alive(TorchDispatchMode):
    """The most bytes of results of torch operations that were alive at once; `but` left out."""

    def __init__(self) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                self._alive[storage._cdata] = weakref.ref(storage)
        living = {key: storage() for key, storage in self._alive.items()}
        self._alive = {key: self._alive[key] for key, s in living.items() if s is not None}
        now = sum(storage.nbytes() for storage in living.values() if storage is not None)
        self.peak_bytes = max(self.peak_bytes, now)
        return result


def run_cases(
    group: dist.ProcessGroup, learner: Callable, cases: Sequence[Case]
) -> list[dict[str, Any]]:
    """Every case on this rank, one after the other."""
    return [run_case(learner, case) for case in cases]


def run_case(learner: Callable, case: Case) -> dict[str, Any]:
    """One step of the learner's function, and what was seen of it."""
    happened: list[int] = []
    layers = [Layer(place, happened) for place in range(case.num_layers)]
    x, target = inputs(case)
    before = x.detach().clone()
    given, told = list(layers), list(case.told) if isinstance(case.told, tuple) else case.told
    torch.manual_seed(SEED)
    with Alive() as alive:
        with SavedActivations(nn.ModuleList(layers)) as saved:
            y = learner(given, x, told)
        first, result, kept = list(happened), y.detach(), saved.live_bytes
        loss = (y - target).square().sum()
        if loss.requires_grad:
            loss.backward()
        del loss, y
    weights = [parameter for layer in layers for parameter in layer.parameters()]
    return {
        "result": result,
        "first": first,
        "again": happened[len(first) :],
        "kept": kept,
        "peak": alive.peak_bytes,
        "gradients": [p.grad for p in weights],
        "input_gradient": x.grad,
        "changed": not torch.equal(x.detach(), before) or given != layers,
    }


def inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and target, [R, D] each."""
    generator = torch.Generator().manual_seed(9)
    shape = (2, ROWS, WIDTH)
    x, target = torch.randn(shape, generator=generator, dtype=torch.float64)
    return x.clone().requires_grad_(case.input_needs_gradient), target
