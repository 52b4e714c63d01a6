"""Collectives that autograd can see: each is a linear map, its backward the transposed one.

| function       | forward              | backward             | the gradient that arrives is     |
| -------------- | -------------------- | -------------------- | -------------------------------- |
| copy_to        | identity             | all-reduce (sum)     | this rank's part of a sum        |
| reduce_from    | all-reduce (sum)     | identity             | the same on every rank           |
| gather_from    | all-gather           | own slice            | the same on every rank           |
| scatter_to     | own slice            | all-gather           | of this rank's slice             |
| all_gather     | all-gather           | reduce-scatter (sum) | this rank's part of a sum        |
| reduce_scatter | reduce-scatter (sum) | all-gather           | of this rank's slice             |
| all_to_all     | all-to-all           | all-to-all, reversed | of the rows this rank received   |

The first four are tensor parallelism's, all_gather and reduce_scatter sequence parallelism's,
all_to_all expert parallelism's. `broadcast` and `all_reduce` have no backward and refuse a tensor
that needs one.

Every function takes the group as an argument, accepts any strides and leaves its input (and,
backward, the gradient) untouched. What it returns is new memory, except for the two identities,
which return a view. Shapes are checked before anything is sent. Backward is a collective as well:
every rank of the group has to reach it, a rank that holds no rows too. So on each rank the input
must be part of the graph, or on none.

Cost: S bytes of input on each of N ranks; a rank sends 2(N-1)/N S (all-reduce), (N-1)/N S
(reduce-scatter), (N-1) S (all-gather), and S less its own share (all-to-all).
Source: Megatron-LM (arXiv 1909.08053), section 3; Megatron-LM 3 (arXiv 2205.05198), section 4.2.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from labkit.comm.devices import require_device

# torch 2.13 renamed the two single-tensor collectives; the old names warn there, the new ones are
# missing before.
_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def copy_to(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Enter a sharded region: every rank already holds x. Returns a view of x."""
    require_device(x, group)
    return _Pair.apply(x, lambda x: x.view_as(x), lambda grad: _reduced(grad, group))


def reduce_from(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Leave a sharded region: every rank holds a partial sum, and gets the whole one."""
    require_device(x, group)
    return _Pair.apply(x, lambda x: _reduced(x, group), lambda grad: grad)


def gather_from(x: torch.Tensor, group: dist.ProcessGroup, dim: int = -1) -> torch.Tensor:
    """Leave a sharded region: every rank holds a slice along dim, and gets all, in rank order."""
    require_device(x, group)
    dim = _positive(x, dim)
    return _Pair.apply(
        x, lambda x: _gathered(x, group, dim), lambda grad: _own_slice(grad, group, dim)
    )


def scatter_to(x: torch.Tensor, group: dist.ProcessGroup, dim: int = -1) -> torch.Tensor:
    """Enter a sharded region: every rank holds x, and keeps its own slice along dim.

    Raises:
        ValueError: if the dimension does not divide over the group.
    """
    require_device(x, group)
    dim = _positive(x, dim)
    _check_divides(x, dim, group)
    return _Pair.apply(
        x, lambda x: _own_slice(x, group, dim), lambda grad: _gathered(grad, group, dim)
    )


def all_gather(x: torch.Tensor, group: dist.ProcessGroup, dim: int = 0) -> torch.Tensor:
    """Gather slices along dim for ranks that each go on to do something else with the whole.

    Forward is that of gather_from. Backward differs: here the ranks' gradients are parts of a sum.
    """
    require_device(x, group)
    dim = _positive(x, dim)
    return _Pair.apply(
        x, lambda x: _gathered(x, group, dim), lambda grad: _reduce_scattered(grad, group, dim)
    )


def reduce_scatter(x: torch.Tensor, group: dist.ProcessGroup, dim: int = 0) -> torch.Tensor:
    """Sum x over the group, and keep this rank's slice of the sum along dim.

    Raises:
        ValueError: if the dimension does not divide over the group.
    """
    require_device(x, group)
    dim = _positive(x, dim)
    _check_divides(x, dim, group)
    return _Pair.apply(
        x, lambda x: _reduce_scattered(x, group, dim), lambda grad: _gathered(grad, group, dim)
    )


def all_to_all(
    x: torch.Tensor,
    group: dist.ProcessGroup,
    send_sizes: Sequence[int] | None = None,
    receive_sizes: Sequence[int] | None = None,
) -> torch.Tensor:
    """Send the rows of x to their ranks, and get the rows that are meant for this one.

    Args:
        x: rows in the order of the ranks they go to.
        group: who takes part.
        send_sizes: number of rows for each rank of the group; equal shares unless given.
        receive_sizes: number of rows that come from each rank; equal shares unless given.

    Returns:
        The received rows, in the order of the ranks they come from.

    Raises:
        ValueError: if sizes are missing, or do not fit the group or the rows of x.
    """
    require_device(x, group)
    size, rows = dist.get_world_size(group), x.shape[_positive(x, 0)]
    if (send_sizes is None) != (receive_sizes is None):
        raise ValueError("all_to_all needs both send_sizes and receive_sizes, or neither")
    if send_sizes is None or receive_sizes is None:
        _check_divides(x, 0, group)
        send_sizes = receive_sizes = [rows // size] * size
    for name, sizes in (("send_sizes", send_sizes), ("receive_sizes", receive_sizes)):
        if len(sizes) != size or min(sizes) < 0:
            raise ValueError(f"{name} {list(sizes)} for a group of {size} ranks")
    if sum(send_sizes) != rows:
        raise ValueError(
            f"send_sizes {list(send_sizes)} sum to {sum(send_sizes)}, x has {rows} rows"
        )
    send, receive = list(send_sizes), list(receive_sizes)
    return _Pair.apply(
        x,
        lambda x: _exchanged(x, group, send, receive),
        lambda grad: _exchanged(grad, group, receive, send),  # every row goes back
    )


def all_reduce(
    x: torch.Tensor, group: dist.ProcessGroup, op: Any = dist.ReduceOp.SUM
) -> torch.Tensor:
    """Combine x over the group by any of torch's reductions; without a backward.

    Raises:
        RuntimeError: if x needs a gradient; reduce_from is the sum that has one.
    """
    require_device(x, group)
    _check_no_grad(x, "all_reduce")
    result = _buffer(x)
    dist.all_reduce(result, op=op, group=group)
    return result


def broadcast(x: torch.Tensor, group: dist.ProcessGroup, root: int) -> torch.Tensor:
    """The tensor of one rank, on every rank of the group; without a backward.

    Args:
        x: what to send; on the other ranks it tells shape and dtype only.
        group: who takes part.
        root: global rank of the sender.

    Raises:
        ValueError: if the root is not in the group.
        RuntimeError: if x needs a gradient.
    """
    require_device(x, group)
    _check_no_grad(x, "broadcast")
    if root not in (ranks := dist.get_process_group_ranks(group)):
        raise ValueError(f"root {root} is not one of the group's global ranks {ranks}")
    result = _buffer(x)
    dist.broadcast(result, src=root, group=group)
    return result


class _Pair(torch.autograd.Function):
    """A linear map and the transposed one, which takes the gradient back."""

    @staticmethod
    def forward(ctx, x, there, back):
        ctx.back = back
        return there(x)

    @staticmethod
    @once_differentiable  # a second derivative is an error, not a silent zero
    def backward(ctx, grad):
        return ctx.back(grad), None, None


def _buffer(x: torch.Tensor) -> torch.Tensor:
    """A copy in row-major order: a collective may write into it, and gloo ignores strides."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def _reduced(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    result = _buffer(x)
    dist.all_reduce(result, group=group)
    return result


def _gathered(x: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    slices = x.new_empty(dist.get_world_size(group), *x.shape)  # [N, ..., d, ...]
    _GATHER(slices.view(-1), x.contiguous().view(-1), group=group)
    return slices.movedim(0, dim).flatten(dim, dim + 1)  # [..., N d, ...]


def _own_slice(x: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    return _buffer(x.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)])


def _reduce_scattered(x: torch.Tensor, group: dist.ProcessGroup, dim: int) -> torch.Tensor:
    size = dist.get_world_size(group)
    slices = x.unflatten(dim, (size, x.shape[dim] // size)).movedim(dim, 0)  # [N, ..., d, ...]
    result = x.new_empty(slices.shape[1:])  # [..., d, ...]
    _REDUCE_SCATTER(result.view(-1), slices.contiguous().view(-1), group=group)
    return result


def _exchanged(
    x: torch.Tensor, group: dist.ProcessGroup, send_sizes: list[int], receive_sizes: list[int]
) -> torch.Tensor:
    received = x.new_empty(sum(receive_sizes), *x.shape[1:])
    dist.all_to_all_single(received, x.contiguous(), receive_sizes, send_sizes, group=group)
    return received


def _positive(x: torch.Tensor, dim: int) -> int:
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim {dim} of a tensor that has {x.dim()} dims")
    return dim % x.dim()


def _check_divides(x: torch.Tensor, dim: int, group: dist.ProcessGroup) -> None:
    size = dist.get_world_size(group)
    if x.shape[dim] % size:
        raise ValueError(f"dim {dim} of size {x.shape[dim]} does not divide over {size} ranks")


def _check_no_grad(x: torch.Tensor, name: str) -> None:
    if x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(f"{name} has no backward: give it x.detach(), or use reduce_from")
