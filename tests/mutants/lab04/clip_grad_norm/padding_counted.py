"""expect: lab04.clip_grad_norm.padding

Padding is in the sum of squares.
"""

import torch.distributed as dist


def clip_grad_norm(shard, num_elements, whole, max_norm, group):
    total = shard.square().sum()
    dist.all_reduce(total, group=group)
    norm = (total + sum(x.square().sum() for x in whole)).sqrt()
    if norm > max_norm:
        for x in (shard, *whole):
            x *= max_norm / norm
    return norm
