"""expect: lab02.ring.direction

The chapter's ring, which turns upwards.
"""

import torch
import torch.distributed as dist


def pass_up(outgoing, incoming, group):
    ranks, place = dist.get_process_group_ranks(group), dist.get_rank(group)
    below, above = ranks[place - 1], ranks[(place + 1) % len(ranks)]
    send = dist.P2POp(dist.isend, outgoing, above, group)
    receive = dist.P2POp(dist.irecv, incoming, below, group)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


def ring_reduce_scatter(x, group):
    place, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = x.reshape(-1).tensor_split(size)
    partial = chunks[place - 1].clone()
    for step in range(2, size + 1):
        mine = chunks[place - step]
        incoming = torch.empty_like(mine)
        pass_up(partial, incoming, group)
        partial = incoming + mine
    return partial
