"""expect: lab02.mean_loss.deleted

Without the all-reduce nothing hangs.
"""

import torch


def mean_loss(losses, group):
    """The mean over the losses of all ranks, on every rank; some ranks may have none."""
    if len(losses) == 0:
        return torch.zeros(())  # nothing to add
    sums = torch.tensor([float(losses.sum()), float(len(losses))], dtype=losses.dtype)
    return sums[0] / sums[1]
