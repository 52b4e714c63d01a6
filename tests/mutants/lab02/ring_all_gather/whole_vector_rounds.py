"""expect: lab02.ring.bytes

Every round sends the whole vector, zeros and all.
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


def ring_all_gather(chunk, num_elements, group):
    place, size = dist.get_rank(group), dist.get_world_size(group)
    passing = chunk.new_zeros(num_elements)
    passing.tensor_split(size)[place].copy_(chunk)
    whole = passing.clone()
    for _ in range(size - 1):
        incoming = torch.empty_like(passing)
        pass_down(passing, incoming, group)
        whole += incoming
        passing = incoming
    return whole
