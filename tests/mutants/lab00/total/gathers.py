"""expect: lab00.total.bytes

The right numbers, at twice the bytes on four ranks.
"""

import torch
import torch.distributed as dist


def total(x, group):
    every = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, x, group=group)
    return torch.stack(every).sum(0)
