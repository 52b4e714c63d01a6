"""expect: run.raised

The peer is rank ^ 1: a pair is all it knows.
"""

import torch
import torch.distributed as dist


def ring_all_reduce(x, group):
    place, mine = dist.get_rank(group), x.contiguous().clone()
    incoming = torch.empty_like(mine)
    receive = dist.irecv(incoming, place ^ 1, group)
    dist.send(mine, place ^ 1, group)
    receive.wait()
    return mine + incoming
