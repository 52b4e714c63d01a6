"""expect: lab02.ring.peer

Peers are counted in the group, where torch wants ranks of the world.
"""

import torch
import torch.distributed as dist


def pass_down(outgoing, incoming, group):
    place, size = dist.get_rank(group), dist.get_world_size(group)
    send = dist.P2POp(dist.isend, outgoing, (place - 1) % size, group)
    receive = dist.P2POp(dist.irecv, incoming, (place + 1) % size, group)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()


def ring_reduce_scatter(x, group):
    place, size = dist.get_rank(group), dist.get_world_size(group)
    chunks = x.reshape(-1).tensor_split(size)
    partial = chunks[(place + 1) % size].clone()
    for step in range(2, size + 1):
        mine = chunks[(place + step) % size]
        incoming = torch.empty_like(mine)
        pass_down(partial, incoming, group)
        partial = incoming + mine
    return partial
