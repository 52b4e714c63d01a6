"""expect: lab02.ring.neighbours

Every chunk goes straight to its owner: right bytes, no ring.
"""

import torch
import torch.distributed as dist


def ring_reduce_scatter(x, group):
    ranks, place = dist.get_process_group_ranks(group), dist.get_rank(group)
    chunks = [chunk.contiguous() for chunk in x.reshape(-1).tensor_split(len(ranks))]
    total, works = chunks[place].clone(), []
    incoming = [torch.empty_like(total) for _ in ranks]
    for other, rank in enumerate(ranks):
        if other != place:
            works.append(dist.irecv(incoming[other], rank, group))
            works.append(dist.isend(chunks[other], rank, group))
    for work in works:
        work.wait()
    return total + sum(incoming[other] for other in range(len(ranks)) if other != place)
