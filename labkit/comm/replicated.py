"""Replicated parameters in a sharded region: one all-reduce backward for all of them.

    forward   the tensors themselves, unchanged
    backward  one all-reduce of all their gradients, S bytes together

A rank that sees a part of the heads or of the tokens computes a part of such a gradient. The sum
over the group is the whole, and it is the same on every rank to the last bit.

Cost: a copy of the S bytes forward; backward 2(N-1)/N S sent by each rank, once.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from labkit.comm.collectives import copy_to


def copy_all_to(
    tensors: Sequence[torch.Tensor], group: dist.ProcessGroup
) -> tuple[torch.Tensor, ...]:
    """`copy_to` for many small tensors in one message; those that need no gradient cost nothing.

    Raises:
        ValueError: if tensors that need a gradient differ in dtype.
    """
    trained = [tensor for tensor in tensors if tensor.requires_grad]
    if not trained:
        return tuple(tensors)
    if len(dtypes := {tensor.dtype for tensor in trained}) > 1:
        raise ValueError(f"one message for dtypes {sorted(map(str, dtypes))}: give each its own")
    flat = copy_to(torch.cat([tensor.flatten() for tensor in trained]), group)
    pieces = iter(flat.split([tensor.numel() for tensor in trained]))
    return tuple(
        next(pieces).view(tensor.shape) if tensor.requires_grad else tensor for tensor in tensors
    )
