"""expect: lab02.two_levels.between

The first rank of each host sums for all of it.
"""

import torch.distributed as dist


def two_levels(x, inside, between):
    total = x.clone()
    leader = dist.get_process_group_ranks(inside)[0]
    dist.reduce(total, leader, group=inside)
    if dist.get_rank() == leader:
        dist.all_reduce(total, group=between)
    dist.broadcast(total, leader, group=inside)
    return total
