"""expect: run.mismatch

The round is gone, and both messages block.
"""

import torch
import torch.distributed as dist


def suspect(x, group):
    """The sum of x over the group, on every rank; x stays as it is."""
    ranks, place = dist.get_process_group_ranks(group), dist.get_rank(group)
    size, below, above = len(ranks), ranks[place - 1], ranks[(place + 1) % len(ranks)]
    total = x.clone(memory_format=torch.contiguous_format)
    chunks = total.view(-1).tensor_split(size)
    for step in range(2 * (size - 1)):
        outgoing, kept = chunks[(place - step - 1) % size], chunks[(place - step - 2) % size]
        incoming = torch.empty_like(kept)
        dist.send(outgoing, above, group)
        dist.recv(incoming, below, group)
        if step < size - 1:
            incoming += kept
        kept.copy_(incoming)
    return total
