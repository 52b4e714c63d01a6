"""What happens on the ranks while ZeRO-3 is judged: layers run inside the learner's wrapper.

As in lab04_ranks.py a rank decides nothing. It returns outputs and input gradients, bytes held and
calls, each by the moment: built, between forward and backward, after backward, after the step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.grade.lab04_meter import Meter, Optimizers, storage_bytes
from labkit.grade.lab04_ranks import SETTINGS, Case, draw, on_groups
from labkit.measure.ledger import CommLedger


@dataclass(frozen=True, kw_only=True)
class LayerCase(Case):
    """One training run of layers; shapes are those of their weights, (out, in)."""

    @property
    def lengths(self) -> list[int]:
        """Elements of weight and bias of each layer."""
        return [n for out, width in self.shapes for n in (out * width, out)]


class Layer(nn.Module):
    """tanh(x W^T + b), with W [out, in] and b [out]."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.bias = nn.Parameter(weight.mean(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.weight.T + self.bias)


def layers_of(case: LayerCase) -> list[Layer]:
    """The layers of a run, with the first weights."""
    return [Layer(weight) for weight in draw(case)]


def inputs_of(case: LayerCase, step: int, micro: int, rank: int) -> torch.Tensor:
    """What a rank's micro-batch is: [3, D]."""
    seed = 7 * case.seed + 1009 * step + 101 * micro + rank
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, case.shapes[0][1], generator=generator, dtype=torch.float64)


def run_layers(
    world: dist.ProcessGroup, make: Callable, cases: Sequence[Case]
) -> list[dict[str, Any] | None]:
    """make(layers, make_optimizer, group), called on inputs, backward, and its step()."""
    return list(on_groups(world, cases, partial(_layers, make)))


def _layers(make: Callable, case: LayerCase, group: dist.ProcessGroup, rank: int) -> dict[str, Any]:
    layers, optimizers = layers_of(case), Optimizers(**SETTINGS)
    meter = Meter(layers=layers)
    with meter:
        learner = make(layers, optimizers, group)
    share = case.share_bytes
    seen: dict[str, Any] = {"init_bytes": meter.live_bytes(share), "steps": [], "micro": []}
    meter.most_layers = 0  # they all came whole
    activations = _activation_bytes(case, inputs_of(case, 0, 0, rank))
    for step in range(case.num_steps):
        for micro in range(case.num_micro_batches):
            x = inputs_of(case, step, micro, rank).requires_grad_()
            between = (2 if seen["micro"] else 1) * share + activations
            told = _forward_backward(learner, x, meter, optimizers, (between, 2 * share))
            seen["micro"].append(told)
        with CommLedger() as ledger, meter:
            learner.step()
        held = meter.live_bytes(2 * share, but=optimizers.state(), moment="step")
        seen["steps"].append({"calls": ledger.ops, "held_bytes": held})
    return seen | {
        "activation_bytes": activations,
        "optimizer_bytes": storage_bytes(optimizers.state()),
        "most_layers": meter.most_layers,
    }


def _forward_backward(
    learner: Callable,
    x: torch.Tensor,
    meter: Meter,
    optimizers: Optimizers,
    most: tuple[int, int],
) -> dict[str, Any]:
    """One micro-batch, and what it left behind in between and afterwards."""
    with CommLedger() as forward, meter:
        y = learner(x)
    between = meter.live_bytes(most[0], but=[x, *optimizers.state()], moment="between")
    output = y.detach().clone()
    with CommLedger() as backward, meter:
        y.square().mean().backward()
    del y
    gradient = torch.zeros_like(x) if x.grad is None else x.grad
    after = meter.live_bytes(most[1], but=[x, gradient, *optimizers.state()], moment="after")
    return {
        "output": output,
        "input_gradient": gradient.clone(),
        "forward": forward.ops,
        "backward": backward.ops,
        "between_bytes": between,
        "after_bytes": after,
    }


def _activation_bytes(case: LayerCase, x: torch.Tensor) -> int:
    """What the plain layers hold between forward and backward."""
    layers, meter = layers_of(case), Meter(patience_s=0.0)
    with meter:
        for layer in layers:
            x = layer(x)
    return meter.live_bytes(0, but=[p for layer in layers for p in layer.parameters()])
