"""expect: lab02.ring.collective

The suspect is replaced by the library.
"""

import torch.distributed as dist


def suspect(x, group):
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total
