"""expect: lab02.two_levels.inside

The whole sum is made inside before a chunk of it crosses.
"""

import torch
import torch.distributed as dist

from labkit.comm.handmade import pass_around, ring_all_reduce


def two_levels(x, inside, between):
    part = ring_all_reduce(x, inside).tensor_split(dist.get_world_size(inside))
    mine = ring_all_reduce(part[dist.get_rank(inside)], between)
    total = torch.empty_like(x)
    chunks = total.tensor_split(dist.get_world_size(inside))
    chunks[dist.get_rank(inside)].copy_(mine)
    pass_around(chunks, inside)
    return total
