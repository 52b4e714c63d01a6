"""Sequence parallelism: between the sharded regions every rank holds T/tp of the tokens.

| border  | tensor parallel                | sequence parallel                             |
| ------- | ------------------------------ | --------------------------------------------- |
| enter   | identity; backward all-reduce  | all-gather over T; backward reduce-scatter    |
| leave   | all-reduce; backward identity  | reduce-scatter over T; backward all-gather    |

An all-reduce is a reduce-scatter and an all-gather, so the bytes are the same. What is saved is
memory: norms, residuals and dropout masks are there for T/tp tokens only. `gather_in` keeps its
shard for backward and gathers it again there, while the input's gradient is computed; that one's
reduce-scatter travels while the weights' gradients are.

A norm's gain and a row-parallel bias are used on this rank's tokens only, so their gradients are
parts of a sum: `copy_all_to` or `copy_to` sums them. An average would be tp times too small.

The reduce-scatter is a ring of sends: gloo's own is a whole all-reduce, twice the bytes.

Cost: S = B T D bytes; (tp-1)/tp S sent per border, forward and backward; the gather once more.
Source: Megatron-LM 3 (arXiv 2205.05198), section 4.2.2.

Shapes: B batch, T sequence, D width.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from labkit.comm.collectives import copy_to, gather_from, scatter_to
from labkit.comm.ring import Exchange, finish, start

TOKENS = -2  # the dimension of T in [B, T, D]


def gather_in(
    x: torch.Tensor,
    layers: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
    group: dist.ProcessGroup,
) -> Sequence[torch.Tensor]:
    """Products of all tokens with several column shards, from this rank's tokens.

    Args:
        x: [B, T/tp, D]; all that is kept for backward.
        layers: (weight [out/tp, D], bias [out/tp] or None) of each.
        group: the ranks that share tokens and weights.

    Returns:
        [B, T, out/tp] of each layer.
    """
    return _GatheredLinear.apply(x, group, *(tensor for layer in layers for tensor in layer))


def scatter_out(
    partial: torch.Tensor, bias: torch.Tensor | None, group: dist.ProcessGroup
) -> torch.Tensor:
    """`scatter_sum` of partial products [B, T, D]; then add the bias to this rank's tokens."""
    total = scatter_sum(partial, group)  # [B, T/tp, D]
    return total if bias is None else total + copy_to(bias, group)


def scatter_sum(partial: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Sum [B, T, D] over the group, and keep this rank's tokens [B, T/tp, D].

    Raises:
        ValueError: if the tokens do not divide over the group.
    """
    check_tokens(partial.shape[TOKENS], group)
    return _ReduceScatter.apply(partial, group)


def scatter_tokens(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """This rank's tokens [B, T/tp, D] of what every rank holds [B, T, D].

    Raises:
        ValueError: if the tokens do not divide over the group.
    """
    check_tokens(x.shape[TOKENS], group)
    return scatter_to(x, group, TOKENS)


def check_tokens(num_tokens: int, group: dist.ProcessGroup) -> None:
    """Raise a ValueError unless a sequence divides over the group."""
    size = dist.get_world_size(group)
    if num_tokens % size:
        raise ValueError(
            f"{num_tokens} tokens over tp={size}: pad the sequence to a multiple of {size}"
        )


class _GatheredLinear(torch.autograd.Function):
    """All-gather, then products; backward gathers again instead of keeping the result."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group: dist.ProcessGroup, *layers: Any
    ) -> tuple[torch.Tensor, ...]:
        weights, biases = layers[::2], layers[1::2]
        ctx.save_for_backward(x, *weights)
        ctx.group = group
        whole = gather_from(x, group, TOKENS)  # [B, T, D]
        return tuple(linear(whole, w, b) for w, b in zip(weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        need_x, _, *need = ctx.needs_input_grad
        gathering = start([x] if any(need[::2]) else [], ctx.group)
        grad_whole = _sum_of_products(grads, weights) if need_x else None  # meanwhile
        whole = _finish_gather(x, gathering, ctx.group) if any(need[::2]) else x  # [B, T, D]
        summing = _start_sum(grad_whole, ctx.group) if grad_whole is not None else None
        results: list[torch.Tensor | None] = []
        for i, grad in enumerate(grads):  # meanwhile
            flat = grad.flatten(0, -2)  # [B T, out/tp]
            results.append(flat.t() @ whole.flatten(0, -2).to(flat.dtype) if need[2 * i] else None)
            results.append(flat.sum(0) if need[2 * i + 1] else None)
        if grad_whole is None or summing is None:
            return None, None, *results
        return _finish_sum(grad_whole, summing, ctx.group), None, *results  # [B, T/tp, D]


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return _finish_sum(partial, _start_sum(partial, group), group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gather_from(grad, ctx.group, TOKENS), None


def _sum_of_products(
    grads: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Gradient of what entered several products, [B, T, D] partial over tp."""
    # Under autocast the gradients are narrower than the weights, and backward has no autocast.
    total = grads[0] @ weights[0].to(grads[0].dtype)
    for grad, weight in zip(grads[1:], weights[1:], strict=True):
        total += grad @ weight.to(grad.dtype)
    return total


def _finish_gather(x: torch.Tensor, gathering: Exchange, group: dist.ProcessGroup) -> torch.Tensor:
    """All tokens [B, T, D], of which the first round is on its way."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    pieces = {rank: x}
    for step in range(1, size):
        (received,) = finish(gathering)
        pieces[(rank - step) % size] = received
        if step < size - 1:
            gathering = start([received], group)
    return torch.cat([pieces[r] for r in range(size)], TOKENS)


def _start_sum(x: torch.Tensor, group: dist.ProcessGroup) -> Exchange:
    """Begin to sum [B, T, D] over the group: chunk c sets out from rank c+1, to end at rank c."""
    chunks = x.chunk(dist.get_world_size(group), TOKENS)
    return start([chunks[dist.get_rank(group) - 1]], group)


def _finish_sum(x: torch.Tensor, summing: Exchange, group: dist.ProcessGroup) -> torch.Tensor:
    """This rank's chunk of the sum [B, T/tp, D], in new memory; each rank adds its own part."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = x.chunk(size, TOKENS)
    (partial,) = finish(summing)
    for step in range(2, size + 1):
        partial.add_(chunks[rank - step])
        if step < size:
            (partial,) = finish(start([partial], group))
    return partial
