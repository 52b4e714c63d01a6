"""expect: lab02.ring.neighbours

Every rank sends its chunk to all others: right bytes, no ring.
"""

import torch.distributed as dist


def ring_all_gather(chunk, num_elements, group):
    ranks, place = dist.get_process_group_ranks(group), dist.get_rank(group)
    whole, mine, works = chunk.new_empty(num_elements), chunk.contiguous(), []
    chunks = whole.tensor_split(len(ranks))
    chunks[place].copy_(chunk)
    for other, rank in enumerate(ranks):
        if other != place:
            works.append(dist.irecv(chunks[other], rank, group))
            works.append(dist.isend(mine, rank, group))
    for work in works:
        work.wait()
    return whole
