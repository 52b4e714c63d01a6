"""expect: lab02.ring.peer

The partner's rank is counted in the group.
"""

import torch
import torch.distributed as dist


def swap(x, group):
    """The partner's x; ranks 0 and 1 of the group are partners, 2 and 3, and so on."""
    place = dist.get_rank(group)
    partner = place ^ 1
    received = torch.empty_like(x)
    if place % 2 == 0:
        dist.send(x, partner, group)
        dist.recv(received, partner, group)
    else:
        dist.recv(received, partner, group)
        dist.send(x, partner, group)
    return received
