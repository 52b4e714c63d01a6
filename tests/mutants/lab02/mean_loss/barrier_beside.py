"""expect: lab02.clinic.waits

Repaired, with a barrier to be safe.
"""

import torch
import torch.distributed as dist


def mean_loss(losses, group):
    """The mean over the losses of all ranks, on every rank; some ranks may have none."""
    sums = torch.tensor([float(losses.sum()), float(len(losses))], dtype=losses.dtype)
    dist.barrier(group)
    dist.all_reduce(sums, group=group)
    return sums[0] / sums[1]
