"""A stage: one part of the model, and what it keeps of every micro-batch in flight.

    F   y = f(x, w)                     keeps x and the graph
    B   dx = (dy/dx)^T dy, dw += (dy/dw)^T dy           frees both
    I   dx alone                        frees the graph, keeps x and dy of every linear layer
    W   dw += dy^T x of those layers    frees them

Backward has two halves. The stage before waits for dx; for dw nobody waits before the optimizer.
They are split where the arithmetic is, in `linear`: its backward returns dy w and leaves the
product dy^T x for W. All other gradients (norms, biases, embeddings) cost little and come with I.
So I and W together do exactly the arithmetic of B, and no part of it twice.

The output itself is not kept: backward starts from its place in the graph. A stage frees it once it
is sent.

Cost: I and W are 2 FLOP a weight and token each, as F is. In flight: x and the graph's saved
tensors from F to B (or I), x and dy of the linear layers from I to W.
Source: Zero Bubble Pipeline Parallelism (arXiv 2401.10241), section 2.

Shapes: b rows of a micro-batch, T any further dimensions, D and F widths.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import once_differentiable
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

# Weight, input and output gradient of one linear layer.
Product = tuple[nn.Parameter, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """Shape and dtype of one micro-batch where it passes from a stage to the next."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, x: torch.Tensor) -> "Boundary":
        return cls(shape=tuple(x.shape), dtype=x.dtype)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {list(self.shape)}"


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A micro-batch between F and B or I; no edge where nothing in the stage needs a gradient."""

    x: torch.Tensor
    edge: GradientEdge | None
    products: list[Product]


class Stage:
    """A module as one stage of a pipeline.

    Args:
        module: takes one tensor and returns one.
        takes: what a micro-batch looks like when it arrives.
    """

    def __init__(self, module: nn.Module, takes: Boundary) -> None:
        self.module = module
        self.takes = takes
        self._kept: dict[int, _Kept] = {}
        self._products: dict[int, list[Product]] = {}
        self._gives: Boundary | None = None

    @property
    def device(self) -> torch.device:
        """Of its parameters, hence of what it receives."""
        first = next(self.module.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def num_in_flight(self) -> int:
        """Micro-batches of which something is still kept: from F to B or W."""
        return len(self._kept) + len(self._products)

    def gives(self) -> Boundary:
        """What a micro-batch looks like when it leaves: found without any arithmetic, once.

        Raises:
            ValueError: if the module cannot take what it is said to take.
        """
        if self._gives is None:
            try:
                with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
                    x = torch.empty(self.takes.shape, dtype=self.takes.dtype, device=self.device)
                    self._gives = Boundary.of(self.module(x))
            except Exception as error:  # whatever the module raises, all ranks are to hear of it
                kind = type(error).__name__
                raise ValueError(f"cannot take {self.takes}: {kind}: {error}") from error
        return self._gives

    def reset(self) -> None:
        """Forget all micro-batches: a run before this one may have failed."""
        self._kept.clear()
        self._products.clear()

    def forward(
        self,
        micro_batch: int,
        x: torch.Tensor,
        *,
        split: bool,
        then: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Run one micro-batch through the module, and keep what backward needs.

        Args:
            micro_batch: its number.
            x: [b, ...]; a leaf, which gets a gradient if it needs one.
            split: its backward will come as I and W.
            then: makes the loss out of the output, on the last stage.

        Returns:
            The output, or the loss, outside of the graph.
        """
        products: list[Product] = []
        with torch.enable_grad(), _LeaveWeights(products) if split else nullcontext():
            y = self.module(x)
            y = y if then is None else then(y)
        edge = get_gradient_edge(y) if y.requires_grad else None
        self._kept[micro_batch] = _Kept(x=x, edge=edge, products=products)
        return y.detach()

    def backward(self, micro_batch: int, grad: torch.Tensor | None) -> torch.Tensor | None:
        """Gradients of the input, and of all weights that forward did not leave for later.

        Args:
            micro_batch: its number.
            grad: of the output; None for a loss.

        Returns:
            The gradient of x, zero where the module did not use x, or None if x needs none.
        """
        kept = self._kept.pop(micro_batch)
        if kept.edge is not None:
            torch.autograd.backward((kept.edge,), (grad,))
        if kept.products:
            self._products[micro_batch] = kept.products
        if not kept.x.requires_grad:
            return None
        return torch.zeros_like(kept.x) if kept.x.grad is None else kept.x.grad

    def backward_weights(self, micro_batch: int) -> None:
        """Add the gradients that I left to the weights, as autograd would: hooks see them too."""
        products = self._products.pop(micro_batch, [])
        weights = [weight for weight, _, _ in products]
        grads = [
            grad.reshape(-1, grad.shape[-1]).t() @ x.reshape(-1, x.shape[-1])  # [F, D]
            for _, x, grad in products
        ]
        if weights:
            torch.autograd.backward(weights, grads)


class _LeaveWeights(TorchFunctionMode):
    """Inside, `linear` leaves the gradient of its weight to a list, once backward comes to it."""

    def __init__(self, products: list[Product]) -> None:
        super().__init__()
        self.products = products

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is linear:
            return self._linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _linear(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        if not (weight.is_leaf and weight.requires_grad):
            return linear(input, weight, bias)  # frozen, or computed: its gradient has to go on
        y = _SplitLinear.apply(input, weight, self.products)  # [..., F]
        return y if bias is None else y + bias


class _SplitLinear(torch.autograd.Function):
    """x w^T, with a backward that returns dy w and leaves (w, x, dy) to a list."""

    @staticmethod
    def forward(ctx, x, weight, products):
        ctx.save_for_backward(x, weight)
        ctx.products = products
        return linear(x, weight)  # [..., F]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        ctx.products.append((weight, x.detach(), grad))
        return (grad @ weight if ctx.needs_input_grad[0] else None), None, None  # [..., D]


def split_layers(num_layers: int, num_stages: int) -> list[range]:
    """Consecutive layers for each stage, the first ones one more where they do not divide.

    Raises:
        ValueError: if a stage would have no layer.
    """
    if num_stages < 1 or num_layers < num_stages:
        raise ValueError(
            f"{num_layers} layers over {num_stages} stages: each stage needs at least one layer; "
            "use fewer ranks or chunks"
        )
    size, more = divmod(num_layers, num_stages)
    starts = [stage * size + min(stage, more) for stage in range(num_stages + 1)]
    return [range(start, end) for start, end in pairwise(starts)]
