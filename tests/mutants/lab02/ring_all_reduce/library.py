"""expect: lab02.ring.collective

The library's all-reduce.
"""

import torch.distributed as dist


def ring_all_reduce(x, group):
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total
