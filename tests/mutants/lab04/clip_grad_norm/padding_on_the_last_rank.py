"""expect: lab04.clip_grad_norm.padding

All padding is looked for on the last rank, which has less room than that.
"""

import torch.distributed as dist


def clip_grad_norm(shard, num_elements, whole, max_norm, group):
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    missing = (size * len(shard) - num_elements) if rank == size - 1 else 0
    num_own = max(len(shard) - missing, 0)
    total = shard[:num_own].square().sum()
    dist.all_reduce(total, group=group)
    norm = (total + sum(x.square().sum() for x in whole)).sqrt()
    if norm > max_norm:
        for x in (shard, *whole):
            x *= max_norm / norm
    return norm
