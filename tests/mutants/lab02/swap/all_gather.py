"""expect: lab02.swap.messages

A collective brings everything, and the partner's is taken.
"""

import torch
import torch.distributed as dist


def swap(x, group):
    everything = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everything, x, group=group)
    return everything[dist.get_rank(group) ^ 1]
