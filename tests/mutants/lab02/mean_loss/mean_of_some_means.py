"""expect: lab02.mean_loss.of_means

Every rank that has losses brings its mean.
"""

import torch
import torch.distributed as dist


def mean_loss(losses, group):
    full = len(losses) > 0
    sums = torch.tensor([float(losses.mean()) if full else 0.0, float(full)], dtype=losses.dtype)
    dist.all_reduce(sums, group=group)
    return sums[0] / sums[1]
