"""expect: lab02.ring.input

What arrives is written into x.
"""

import torch
import torch.distributed as dist


def swap(x, group):
    """The partner's x; ranks 0 and 1 of the group are partners, 2 and 3, and so on."""
    ranks, place = dist.get_process_group_ranks(group), dist.get_rank(group)
    partner = ranks[place ^ 1]
    received = torch.empty_like(x)
    if place % 2 == 0:
        dist.send(x, partner, group)
        dist.recv(received, partner, group)
    else:
        dist.recv(received, partner, group)
        dist.send(x, partner, group)
    x.copy_(received)
    return received
