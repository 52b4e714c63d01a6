"""expect: lab02.ring.input

The losses are turned into their shares in place.
"""

import torch
import torch.distributed as dist


def mean_loss(losses, group):
    count = torch.tensor(float(len(losses)), dtype=losses.dtype)
    dist.all_reduce(count, group=group)
    mean = losses.div_(count).sum()
    dist.all_reduce(mean, group=group)
    return mean
