"""expect: lab02.mean_loss.local

A rank without losses takes part, and returns 0.
"""

import torch
import torch.distributed as dist


def mean_loss(losses, group):
    """The mean over the losses of all ranks, on every rank; some ranks may have none."""
    sums = torch.tensor([float(losses.sum()), float(len(losses))], dtype=losses.dtype)
    dist.all_reduce(sums, group=group)
    return sums[0] / sums[1] if len(losses) else sums[0] * 0
