"""expect: run.mismatch

All ranks send before they receive.
"""

import torch.distributed as dist


def pass_down(outgoing, incoming, group):
    ranks, place = dist.get_process_group_ranks(group), dist.get_rank(group)
    dist.send(outgoing, ranks[place - 1], group)
    dist.recv(incoming, ranks[(place + 1) % len(ranks)], group)


def ring_all_gather(chunk, num_elements, group):
    place, size = dist.get_rank(group), dist.get_world_size(group)
    whole = chunk.new_empty(num_elements)
    chunks = whole.tensor_split(size)
    chunks[place].copy_(chunk)
    for step in range(size - 1):
        pass_down(chunks[(place + step) % size], chunks[(place + step + 1) % size], group)
    return whole
