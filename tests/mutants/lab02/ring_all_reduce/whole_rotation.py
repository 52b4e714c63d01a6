"""expect: lab02.ring.bytes

Whole tensors go round; every rank adds all of them.
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


def ring_all_reduce(x, group):
    passing = x.contiguous().clone()
    total = passing.clone()
    for _ in range(dist.get_world_size(group) - 1):
        incoming = torch.empty_like(passing)
        pass_down(passing, incoming, group)
        total += incoming
        passing = incoming
    return total
