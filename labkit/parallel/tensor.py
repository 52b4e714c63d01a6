"""Tensor parallelism: every rank holds a part of each weight, and all work on the same tokens.

    columns   Y_r = X W_r^T + b_r              W_r: rows of the stored matrix, [out/tp, in]
    rows      Y   = sum_r X_r W_r^T + b        W_r: columns of the stored matrix, [out, in/tp]

nn.Linear stores (out, in): the columns of the mathematician's matrix are dim 0 of the stored one.
Columns first and rows after them need no exchange in between, so an MLP (gate and up by columns,
down by rows) and an attention (Q, K, V by heads, O by rows) are

    copy_to -> columns -> work on own hidden units or heads -> rows -> reduce_from

with exactly one all-reduce forward and one backward. How a region is entered and left is an
argument, `enter` and `leave`; sequence.py has the other pair.

All ranks must be built from the same weights; `labkit.comm.pieces.broadcast_state` makes them so.
Each module keeps copies of its own shards only, and tells in `splits` how its parameters are cut.

Cost: 1/tp of weights, gradients and FLOPs a rank; S = B T D bytes of activations: 2(tp-1)/tp S sent
by each rank per all-reduce, four of them in a layer and step.
Source: Megatron-LM (arXiv 1909.08053), section 3.

Shapes: B batch, T sequence, D width, F hidden width, H heads, K KV heads, d head width.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call
from torch.nn.functional import linear, silu

from labkit.comm.collectives import copy_to, reduce_from
from labkit.comm.replicated import copy_all_to
from labkit.comm.split import Split, check_divides, check_replicas, place_in

Layer = tuple[torch.Tensor, torch.Tensor | None]  # weight [out, in], bias [out]
Enter = Callable[[torch.Tensor, Sequence[Layer], dist.ProcessGroup], Sequence[torch.Tensor]]
Leave = Callable[[torch.Tensor, torch.Tensor | None, dist.ProcessGroup], torch.Tensor]


def copy_in(
    x: torch.Tensor, layers: Sequence[Layer], group: dist.ProcessGroup
) -> list[torch.Tensor]:
    """Products of one replicated input with several column shards; backward one all-reduce."""
    x = copy_to(x, group)  # once for all: a copy_to for each would sum each gradient by itself
    return [linear(x, weight, bias) for weight, bias in layers]


def reduce_out(
    partial: torch.Tensor, bias: torch.Tensor | None, group: dist.ProcessGroup
) -> torch.Tensor:
    """Sum the ranks' partial products; then, once, add the bias that every rank holds."""
    total = reduce_from(partial, group)
    return total if bias is None else total + bias


class ColumnParallelLinear(nn.Module):
    """This rank's output columns of a linear layer; their part of the bias with them.

    Args:
        full: the whole layer, with the same weights on every rank.
        group: the ranks that share it.
        parts: number of distinct shards; fewer than ranks where neighbours hold the same one.
        enter: how the input reaches the product.

    Raises:
        ValueError: if the output does not divide, or the caller is not in the group.
    """

    def __init__(
        self,
        full: nn.Linear,
        group: dist.ProcessGroup,
        *,
        parts: int | None = None,
        enter: Enter = copy_in,
    ) -> None:
        super().__init__()
        rank, size = place_in(group)
        parts = size if parts is None else parts
        check_divides("output columns", full.out_features, parts)
        split = Split(dim=0, size=full.out_features, parts=parts)
        self.group, self.enter = group, enter
        self.splits = {"weight": split} | ({} if full.bias is None else {"bias": split})
        self.weight = _own(full.weight, split, rank, size)  # [out/tp, in]
        self.bias = None if full.bias is None else _own(full.bias, split, rank, size)  # [out/tp]

    @property
    def layer(self) -> Layer:
        """Weight and bias, for a region that enters with several layers at once."""
        return self.weight, self.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in] of this region's entrance; returns [..., out/tp]."""
        return self.enter(x, [self.layer], self.group)[0]


class RowParallelLinear(nn.Module):
    """The product of this rank's input columns; the ranks' products are summed at the exit.

    Args:
        full: the whole layer, with the same weights on every rank.
        group: the ranks that share it.
        leave: how the partial sums become the output. The bias is whole on every rank.

    Raises:
        ValueError: if the input does not divide, or the caller is not in the group.
    """

    def __init__(
        self, full: nn.Linear, group: dist.ProcessGroup, *, leave: Leave = reduce_out
    ) -> None:
        super().__init__()
        rank, size = place_in(group)
        check_divides("input columns", full.in_features, size)
        split = Split(dim=1, size=full.in_features, parts=size)
        self.group, self.leave, self.splits = group, leave, {"weight": split}
        self.weight = _own(full.weight, split, rank, size)  # [out, in/tp]
        whole = Split(size=full.out_features)
        self.bias = None if full.bias is None else _own(full.bias, whole, rank, size)  # [out]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., in/tp]; returns [..., out]."""
        return self.leave(linear(x, self.weight), self.bias, self.group)


class ParallelMLP(nn.Module):
    """SwiGLU on F/tp hidden units: one all-reduce forward, one backward.

    Args:
        mlp: a module with linear layers gate_proj, up_proj and down_proj.
        group, enter, leave: as for the linear layers.
    """

    def __init__(
        self,
        mlp: nn.Module,
        group: dist.ProcessGroup,
        *,
        enter: Enter = copy_in,
        leave: Leave = reduce_out,
    ) -> None:
        super().__init__()
        gate, up, down = (mlp.get_submodule(f"{name}_proj") for name in ("gate", "up", "down"))
        self.group, self.enter = group, enter
        self.gate_proj = ColumnParallelLinear(_linear(gate), group, enter=enter)
        self.up_proj = ColumnParallelLinear(_linear(up), group, enter=enter)
        self.down_proj = RowParallelLinear(_linear(down), group, leave=leave)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.enter(x, [self.gate_proj.layer, self.up_proj.layer], self.group)
        return self.down_proj(silu(gate) * up)  # [B, T, F/tp] -> [B, T, D]


class ParallelAttention(nn.Module):
    """Attention on H/tp heads: one all-reduce forward, one backward.

    The module given computes attention as it always does, on fewer heads: it must have linear
    layers q_proj, k_proj, v_proj and o_proj and a head_dim, and take the number of heads from the
    width of what its projections return. Its other parameters (gains of a norm on Q and K) are
    replicated; each rank sees their gradient for its own heads, so one more all-reduce sums them.

    With more ranks than KV heads, tp/K neighbours hold the same K and V weights. Each computes the
    gradient that comes from its own query heads; one all-reduce over `kv_group` sums those.

    Args:
        attention: the whole module, with the same weights on every rank.
        kv_group: the ranks that hold this rank's KV head, `replica_group(group, K)`; needed where
            there are more ranks than KV heads.
        group, enter, leave: as for the linear layers.

    Raises:
        ValueError: if heads or KV heads do not divide, or kv_group is missing or of another size.
    """

    def __init__(
        self,
        attention: nn.Module,
        group: dist.ProcessGroup,
        *,
        kv_group: dist.ProcessGroup | None = None,
        enter: Enter = copy_in,
        leave: Leave = reduce_out,
    ) -> None:
        super().__init__()
        _, size = place_in(group)
        q, k, v, o = (_linear(attention.get_submodule(f"{name}_proj")) for name in "qkvo")
        head_dim = int(attention.head_dim)  # type: ignore[arg-type]
        num_kv_heads = k.out_features // head_dim
        check_divides("heads", q.out_features // head_dim, size)
        check_replicas("KV heads", num_kv_heads, size, kv_group)
        kv = dict(parts=min(num_kv_heads, size), enter=enter)
        self.group, self.enter = group, enter
        self.kv_group = kv_group if num_kv_heads < size else None
        self.q_proj = ColumnParallelLinear(q, group, enter=enter)
        self.k_proj = ColumnParallelLinear(k, group, **kv)  # type: ignore[arg-type]
        self.v_proj = ColumnParallelLinear(v, group, **kv)  # type: ignore[arg-type]
        self.o_proj = RowParallelLinear(o, group, leave=leave)
        # A deep copy that finds these in place of the projections, whose weights it does not copy.
        placed = {id(each): _Given(index) for index, each in enumerate((q, k, v))}
        core = copy.deepcopy(attention, {**placed, id(o): nn.Identity()})
        for name, child in core.named_children():
            if not name.endswith("_proj"):
                self.add_module(name, child)
        self._core = (core,)  # in a tuple: its parameters are registered above, by their own names

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """x [B, T, D] and whatever else the module's forward takes; returns [B, T, D]."""
        (core,) = self._core
        core.training = self.training
        heads = self.enter(x, [self.q_proj.layer, *self._kv_layers()], self.group)
        names, gains = [*dict(core.named_parameters())], [*core.parameters()]
        summed = dict(zip(names, copy_all_to(gains, self.group), strict=True))
        return self.o_proj(functional_call(core, summed, (heads, *args), kwargs))  # [B, T, D]

    def _kv_layers(self) -> list[Layer]:
        """K and V; where they have replicas, so that backward sums over those."""
        layers = [self.k_proj.layer, self.v_proj.layer]
        if self.kv_group is None:
            return layers
        present = [tensor for layer in layers for tensor in layer if tensor is not None]
        summed = iter(copy_all_to(present, self.kv_group))
        return [(next(summed), None if bias is None else next(summed)) for _, bias in layers]


class _Given(nn.Module):
    """Stands where a projection stood: picks what was projected before, outside of the module."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def forward(self, projected: Sequence[torch.Tensor]) -> torch.Tensor:
        return projected[self.index]


def _own(full: torch.Tensor, split: Split, rank: int, size: int) -> nn.Parameter:
    return nn.Parameter(split.cut(full, rank, size), requires_grad=full.requires_grad)


def _linear(module: nn.Module) -> nn.Linear:
    if not isinstance(module, nn.Linear):
        raise ValueError(f"expected a whole nn.Linear, got {type(module).__name__}")
    return module
