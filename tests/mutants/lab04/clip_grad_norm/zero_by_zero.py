"""expect: lab04.clip_grad_norm.raised

All-zero gradients become nan.
"""

import torch.distributed as dist


def clip_grad_norm(shard, num_elements, whole, max_norm, group):
    num_own = min(max(num_elements - dist.get_rank(group) * len(shard), 0), len(shard))
    total = shard[:num_own].square().sum()
    dist.all_reduce(total, group=group)
    norm = (total + sum(x.square().sum() for x in whole)).sqrt()
    if not norm < max_norm or norm == 0:
        for x in (shard, *whole):
            x *= max_norm / norm
    return norm
