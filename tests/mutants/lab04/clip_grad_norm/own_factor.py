"""expect: lab04.clip_grad_norm.own_factor

The norm is right; each rank scales by its own.
"""

import torch.distributed as dist


def clip_grad_norm(shard, num_elements, whole, max_norm, group):
    num_own = min(max(num_elements - dist.get_rank(group) * len(shard), 0), len(shard))
    total = shard[:num_own].square().sum()
    own = (total + sum(x.square().sum() for x in whole)).sqrt()
    dist.all_reduce(total, group=group)
    norm = (total + sum(x.square().sum() for x in whole)).sqrt()
    if norm > max_norm:
        for x in (shard, *whole):
            x *= max_norm / own
    return norm
