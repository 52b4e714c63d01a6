"""expect: lab02.ring.aliased

Nothing is copied, so that a group of one returns its input.
"""

import torch
import torch.distributed as dist


def pass_down(outgoing, incoming, group):
    ranks, place = dist.get_process_group_ranks(group), dist.get_rank(group)
    below, above = ranks[place - 1], ranks[(place + 1) % len(ranks)]
    send = dist.P2POp(dist.isend, outgoing, below, group)
    receive = dist.P2POp(dist.irecv, incoming, above, group)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


def ring_reduce_scatter(x, group):
    place, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = x.reshape(-1).tensor_split(size)
    partial = chunks[(place + 1) % size].contiguous()
    for step in range(2, size + 1):
        mine = chunks[(place + step) % size]
        incoming = torch.empty_like(mine)
        pass_down(partial, incoming, group)
        partial = incoming + mine
    return partial
