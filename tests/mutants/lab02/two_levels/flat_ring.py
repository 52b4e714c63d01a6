"""expect: lab02.two_levels.between

One ring through the world.
"""

import torch.distributed as dist

from labkit.comm.handmade import ring_all_reduce


def two_levels(x, inside, between):
    return ring_all_reduce(x, dist.group.WORLD)
