"""expect: lab02.ring.shape

All chunks are taken to be as long as this rank's own.
"""

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
    length = num_elements // size
    whole = chunk.new_empty(size, length)
    whole[place] = chunk[:length]
    for step in range(size - 1):
        pass_down(whole[(place + step) % size], whole[(place + step + 1) % size], group)
    return whole.flatten()
