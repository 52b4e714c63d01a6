"""expect: lab04.clip_grad_norm.norm

The largest number takes the place of the norm.
"""

import torch.distributed as dist


def clip_grad_norm(shard, num_elements, whole, max_norm, group):
    num_own = min(max(num_elements - dist.get_rank(group) * len(shard), 0), len(shard))
    total = shard[:num_own].abs().amax() ** 2 if num_own else shard.sum() * 0
    dist.all_reduce(total, dist.ReduceOp.MAX, group=group)
    norm = (total + sum(x.square().sum() for x in whole)).sqrt()
    if norm > max_norm:
        for x in (shard, *whole):
            x *= max_norm / norm
    return norm
