"""expect: run.mismatch

A rank without losses meets the others' all-reduce with a barrier.
"""

import torch
import torch.distributed as dist


def mean_loss(losses, group):
    """The mean over the losses of all ranks, on every rank; some ranks may have none."""
    if len(losses) == 0:
        dist.barrier(group)
        return torch.zeros(())
    sums = torch.tensor([float(losses.sum()), float(len(losses))], dtype=losses.dtype)
    dist.all_reduce(sums, group=group)
    return sums[0] / sums[1]
