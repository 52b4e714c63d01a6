"""ZeRO 3, or FSDP: a rank holds its shard of everything, and a layer's weights while it runs.

    forward of unit k:    all-gather its weights, compute, drop them
    backward of unit k:   all-gather them again, compute, reduce-scatter the gradient, drop both

A unit is a layer: its parameters travel in one message. While unit k computes, the weights of the
next one are on their way, so two are alive. The root unit, what is in no layer (embedding, last
norm and head), is used at both ends, and stays whole during forward and during backward.

Bytes a rank holds: S/N of weights, of gradients and of each of the optimizer's tensors; the root
and two units whole. Traffic of forward and backward: 3 (N-1)/N S, S the bytes of the padded
parameters: half as much again as data parallelism.

    model = FullyShardedModel(module, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)    # after the model: shards
    loss(model, batch).backward()
    model.finish()                                                # p.grad is the average
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()

Between steps the module's parameters are this rank's pieces, 1-d, under their old names. Gradients
of several backwards add up in the shards. Each of them is sent, so micro-batches cost traffic.

All ranks run the same units in the same order, and backward equally often. The order is learned
in the first forward. A unit that is recomputed in backward (activation checkpointing around one
unit) needs no further message. A parameter that no rank used has no gradient; a frozen one travels
with the others. An optimizer's update must be element-wise (labkit/comm/pieces.py).
Source: ZeRO (arXiv 1910.02054), sections 5.3 and 7.2.2; PyTorch FSDP (arXiv 2304.11277).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_flatten

from labkit.comm.pieces import broadcast_state, check_member, clip_pieces, divisor
from labkit.comm.shards import Reduction
from labkit.comm.units import ShardedUnit, outermost_layers, share_out


class FullyShardedModel(nn.Module):
    """A module whose weights are whole only where and while they are used.

    Args:
        module: what to train; values are taken from group rank 0. Its parameters are replaced.
        group: the ranks that share the batch.
        units: modules that are gathered as one; the children of every ModuleList unless given.
            What they leave over is the root. A unit is called as a module: hooks do the work.
        prefetch: gather the next unit while one computes; else only one is alive.
        compute_dtype: of gathered weights and of the gradients sent, such as torch.bfloat16;
            shards and their gradients keep the module's. Inputs are the caller's to convert.
        keep: whether to shard a parameter, by its name; the others are left alone, for another
            group, say.

    Raises:
        ValueError: for units outside the module or inside one another, a parameter shared by two
            units, parameters of two dtypes in a unit, or on a rank outside the group.
    """

    def __init__(
        self,
        module: nn.Module,
        group: dist.ProcessGroup,
        *,
        units: Sequence[nn.Module] | None = None,
        prefetch: bool = True,
        compute_dtype: torch.dtype | None = None,
        keep: Callable[[str], bool] = lambda name: True,
    ) -> None:
        super().__init__()
        check_member(group)
        shares = share_out(module, outermost_layers(module) if units is None else units, keep)
        if not shares:
            raise ValueError("the module has 0 parameters: nothing to shard")
        named = [*module.named_parameters(), *module.named_buffers()]
        broadcast_state([tensor for name, tensor in named if keep(name)], group)
        self.module = module
        self.group = group
        self.prefetch = prefetch
        self._units = []
        for owner, places in shares:
            unit = ShardedUnit(places, group, compute_dtype)
            owner.register_forward_pre_hook(partial(self._before_forward, unit))
            owner.register_forward_hook(partial(self._after_forward, unit), always_call=True)
            self._units.append(unit)
        self._root = next(
            (u for u, (owner, _) in zip(self._units, shares, strict=True) if owner is module), None
        )
        self.pieces = [piece for unit in self._units for piece in unit.pieces]
        self._order: list[ShardedUnit] = []  # of the first forward, without the root
        self._backward = -1  # number that autograd gives to the backward that runs
        self._sending: tuple[ShardedUnit, Reduction] | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._backward >= 0 and not _in_backward():
            self._forget_a_failed_backward()
        return self.module(*args, **kwargs)

    def finish(self, num_tokens: int | None = None) -> None:
        """Turn the sums since the last call into averages, and add them to the pieces' .grad.

        Args:
            num_tokens: of this rank, if losses are sums over tokens; else the average is that of
                the ranks.
        """
        mean_of = divisor(num_tokens, self.group, self.pieces[0].parameter.device)
        for unit in self._units:
            unit.give_gradients(mean_of)

    def clip_grad_norm_(self, clip_norm: float) -> torch.Tensor:
        """Scale the gradients of all shards to a norm of at most clip_norm; returns it before."""
        return clip_pieces(self.pieces, clip_norm, self.group)

    def _before_forward(self, unit: ShardedUnit, module: nn.Module, args: Any) -> None:
        if _in_backward():  # recomputation: what it gathers stays for backward
            self._before_backward(unit)
            return
        unit.gather()
        if unit is not self._root and unit not in self._order:
            self._order.append(unit)
        elif self.prefetch:
            self._start_next(self._order, unit)

    def _after_forward(self, unit: ShardedUnit, module: nn.Module, args: Any, output: Any) -> None:
        if not unit.in_backward:
            unit.drop()
        if unit is self._root and not _in_backward():
            self._drop_all()
        for each in tree_flatten(output)[0]:
            if isinstance(each, torch.Tensor) and each.requires_grad:
                each.register_hook(partial(self._before_backward, unit))

    def _before_backward(self, unit: ShardedUnit, grad: torch.Tensor | None = None) -> None:
        """The gradient of the unit's output is there, or comes next, so units after it are done."""
        if self._backward != (number := torch._C._current_graph_task_id()):
            self._backward = number
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        if unit.in_backward:
            return
        # When the root's comes none is done; it may be the output of the last unit too.
        place = self._order.index(unit) if unit in self._order else len(self._order)
        for later in reversed(self._order[place + 1 :]):
            self._close(later)
        unit.gather()
        unit.in_backward = True
        if self.prefetch:
            self._start_next(self._order[::-1], unit)

    def _start_next(self, order: list[ShardedUnit], unit: ShardedUnit) -> None:
        """Begin to gather the unit that follows; the root comes before the first."""
        place = order.index(unit) + 1 if unit in order else 0
        for following in order[place : place + 1]:
            following.start_gather()

    def _close(self, unit: ShardedUnit) -> None:
        """Backward is through with a unit: drop its weights, send its gradient."""
        if not unit.in_backward:
            return
        unit.in_backward = False
        unit.drop()
        reduction = unit.start_reduce()
        self._arrive()
        self._sending = unit, reduction

    def _arrive(self) -> None:
        """At most one gradient is on its way."""
        if self._sending is not None:
            unit, reduction = self._sending
            unit.finish_reduce(reduction)
        self._sending = None

    def _end_of_backward(self) -> None:
        for unit in [*reversed(self._order), *self._units]:  # the root is not in the order
            self._close(unit)
        self._arrive()
        self._backward = -1
        self._drop_all()

    def _forget_a_failed_backward(self) -> None:
        """With it go all sums since the last finish(): nobody knows what they lack."""
        self._arrive()
        self._backward = -1
        self._drop_all()
        for unit in self._units:
            unit.forget()

    def _drop_all(self) -> None:
        """A unit may have been gathered ahead and not been used."""
        for unit in self._units:
            unit.drop()


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() >= 0
