"""One collective, on a tensor made for it."""

import torch
import torch.distributed as dist


def total(x, group):
    y = torch.zeros_like(x)
    y += x
    dist.all_reduce(y, group=group)
    return y
