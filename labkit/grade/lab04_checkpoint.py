"""Lab 04: the check of activation checkpointing by hand.

The plain layers in one process are the oracle: outputs, the input's and all parameters' gradients.
What decides besides: bytes alive between forward and backward (nothing but each layer's output),
forward runs (one forward, one more backward), and random numbers: dropout drops the same elements
twice, and backward leaves the generator where it found it.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.grade.check import CheckFailed, Learner, expect
from labkit.grade.lab04_meter import Meter
from labkit.grade.lab04_ranks import telling

CLOSE = 1e-12
TIMEOUT_S = 6.0
LIBRARY = "torch/utils/checkpoint.py"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One forward and backward through layers that are checkpointed one by one.

    Args:
        rows, width: of the input.
        with_gradient: the input needs one.
    """

    rows: int
    width: int
    num_layers: int = 1
    dropout: float = 0.0
    with_gradient: bool = True

    def __str__(self) -> str:
        told = f"{self.num_layers} layers, input [{self.rows}, {self.width}]"
        told += f", dropout {self.dropout}" if self.dropout else ""
        return told + ", which needs no gradient" * (not self.with_gradient)

    def layers(self) -> list["Block"]:
        """Layers and weights, the same wherever they are made."""
        generator = torch.Generator().manual_seed(self.width)
        return [Block(self.width, self.dropout, generator) for _ in range(self.num_layers)]

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The input, and the gradient of the output."""
        generator = torch.Generator().manual_seed(self.rows)
        shape = (self.rows, self.width)
        x, gradient = (
            torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)
        )
        return x.requires_grad_(self.with_gradient), gradient


CASES = (
    Case(rows=6, width=3),
    Case(rows=6, width=3, with_gradient=False),
    Case(rows=5, width=4, dropout=0.5),
    Case(rows=41, width=3, dropout=0.3, num_layers=3),
    Case(rows=1, width=1),
)


class Block(nn.Module):
    """dropout(tanh(x W)) V, four times as wide inside; counts how often it runs."""

    def __init__(self, width: int, dropout: float, generator: torch.Generator) -> None:
        super().__init__()
        shapes = (width, 4 * width), (4 * width, width)
        self.up, self.down = (
            nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64)) for s in shapes
        )
        self.dropout = dropout
        self.runs = 0
        self.by_library = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        frame = sys._getframe()
        while frame.f_back is not None and not self.by_library:
            frame = frame.f_back
            self.by_library = frame.f_code.co_filename.endswith(LIBRARY)
        hidden = torch.tanh(x @ self.up)  # [rows, 4 width]
        return nn.functional.dropout(hidden, self.dropout, training=True) @ self.down


def run_checkpoint(
    world: dist.ProcessGroup, function: Callable, cases: Sequence[Case]
) -> list[list[dict[str, Any]]]:
    """function(layer, x), layer after layer, then backward; twice."""
    seen = []
    for case in cases:
        with telling(str(case)):
            seen.append([_pass(case, function) for _ in range(2)])
    return seen


def _pass(case: Case, function: Callable) -> dict[str, Any]:
    layers, (x, gradient), meter = case.layers(), case.tensors(), Meter(patience_s=0.0)
    torch.manual_seed(case.width)
    with meter:
        y = x
        for layer in layers:
            y = function(layer, y)
    parameters = [p for layer in layers for p in layer.parameters()]
    seen: dict[str, Any] = {
        "output": y.detach().clone(),
        "kept_bytes": meter.live_bytes(0, but=[x, *parameters]),
        "first_runs": [layer.runs for layer in layers],
    }
    before = torch.get_rng_state()
    if y.requires_grad:  # without a graph all gradients are missing: the parent says what that is
        y.backward(gradient)
    gradients = [p.grad for p in parameters]
    return seen | {
        "stream_moved": not torch.equal(before, torch.get_rng_state()),
        "input_gradient": x.grad,
        "gradients": gradients,
        "runs": [layer.runs for layer in layers],
        "library": any(layer.by_library for layer in layers),
    }


def check_checkpoint(learner: Learner) -> Iterator[str]:
    """The same gradients from less memory, for one more forward."""
    (by_case,) = learner.run(run_checkpoint, 1, CASES, timeout=TIMEOUT_S)
    for case, passes in zip(CASES, by_case, strict=True):
        expected = _plain(case)
        for seen in passes:
            _judge(case, seen, expected)
    yield from ("output", "gradients", "kept_bytes", "runs", "random_numbers")


def _plain(case: Case) -> dict[str, Any]:
    layers, (x, gradient) = case.layers(), case.tensors()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.width)
        y = x
        for layer in layers:
            y = layer(y)
    y.backward(gradient)
    gradients = [p.grad for layer in layers for p in layer.parameters()]
    return {"output": y.detach(), "input_gradient": x.grad, "gradients": gradients}


def _judge(case: Case, seen: dict[str, Any], expected: dict[str, Any]) -> None:
    where: dict[str, Any] = {"case": case}
    expect("lab04.checkpoint.output", seen["output"], expected["output"], atol=CLOSE, **where)
    if case.with_gradient:
        _judge_gradient("input_gradient", seen["input_gradient"], expected["input_gradient"], case)
    for got, right in zip(seen["gradients"], expected["gradients"], strict=True):
        _judge_gradient("gradients", got, right, case)
    numbers = case.num_layers * case.rows * case.width
    if seen["kept_bytes"] > 8 * numbers:
        told = {"expected": 8 * numbers, "got": seen["kept_bytes"]}
        raise CheckFailed("lab04.checkpoint.kept", **told, **where)
    expect("lab04.checkpoint.runs", seen["first_runs"], [1] * case.num_layers, **where)
    expect("lab04.checkpoint.runs", seen["runs"], [2] * case.num_layers, **where)
    if seen["stream_moved"]:
        raise CheckFailed("lab04.checkpoint.stream", **where)
    if seen["library"]:
        raise CheckFailed("lab04.checkpoint.library", **where)


def _judge_gradient(kind: str, got: Any, right: torch.Tensor, case: Case) -> None:
    """A gradient that is missing, doubled, of another dropout, or wrong."""
    if got is None:
        raise CheckFailed(f"lab04.checkpoint.no_{kind}", case=case)
    cause = kind
    if not bool(((got - right).abs() <= CLOSE).all()):
        if bool(((got - 2 * right).abs() <= CLOSE).all()):
            cause = "doubled"
        elif case.dropout:
            cause = "dropout"
    expect(f"lab04.checkpoint.{cause}", got, right, atol=CLOSE, case=case)
