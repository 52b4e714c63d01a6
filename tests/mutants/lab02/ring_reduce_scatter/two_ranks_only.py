"""expect: run.raised

The peer is rank ^ 1: a pair is all it knows.
"""

import torch
import torch.distributed as dist


def ring_reduce_scatter(x, group):
    place = dist.get_rank(group)
    mine, theirs = x.reshape(-1).tensor_split(2)[:: 1 if place == 0 else -1]
    incoming = torch.empty_like(mine)
    receive = dist.irecv(incoming, place ^ 1, group)
    dist.send(theirs.contiguous(), place ^ 1, group)
    receive.wait()
    return incoming + mine
