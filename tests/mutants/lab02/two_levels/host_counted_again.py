"""expect: lab02.two_levels.values

The host's own sum is added once more.
"""

import torch
import torch.distributed as dist

from labkit.comm.handmade import pass_around, ring_all_reduce, ring_reduce_scatter


def two_levels(x, inside, between):
    mine = ring_all_reduce(ring_reduce_scatter(x, inside), between)
    total = torch.empty_like(x)
    chunks = total.tensor_split(dist.get_world_size(inside))
    chunks[dist.get_rank(inside)].copy_(mine)
    pass_around(chunks, inside)
    return total + ring_all_reduce(x, inside)
