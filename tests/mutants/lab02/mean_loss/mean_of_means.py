"""expect: lab02.mean_loss.of_means

Every rank brings its mean, an empty one 0.
"""

import torch
import torch.distributed as dist


def mean_loss(losses, group):
    mean = losses.mean() if len(losses) else torch.zeros((), dtype=losses.dtype)
    dist.all_reduce(mean, group=group)
    return mean / dist.get_world_size(group)
