"""expect: run.raised

Chunks are counted by the rank in the world, not in the group.
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
    place, size = dist.get_rank() % dist.get_world_size(group), dist.get_world_size(group)
    whole = chunk.new_empty(num_elements)
    chunks = whole.tensor_split(size)
    chunks[place].copy_(chunk)
    for step in range(size - 1):
        pass_down(chunks[(place + step) % size], chunks[(place + step + 1) % size], group)
    return whole
