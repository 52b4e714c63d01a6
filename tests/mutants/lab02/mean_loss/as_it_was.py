"""expect: run.mismatch

The program of the clinic: a rank without losses leaves.
"""

import torch
import torch.distributed as dist


def mean_loss(losses, group):
    """The mean over the losses of all ranks, on every rank; some ranks may have none."""
    if len(losses) == 0:
        return torch.zeros(())  # nothing to add
    sums = torch.tensor([float(losses.sum()), float(len(losses))], dtype=losses.dtype)
    dist.all_reduce(sums, group=group)
    return sums[0] / sums[1]
