"""expect: lab04.clip_grad_norm.left_out

What every rank holds whole is not in the norm.
"""

import torch.distributed as dist


def clip_grad_norm(shard, num_elements, whole, max_norm, group):
    num_own = min(max(num_elements - dist.get_rank(group) * len(shard), 0), len(shard))
    total = shard[:num_own].square().sum()
    dist.all_reduce(total, group=group)
    norm = total.sqrt()
    if norm > max_norm:
        for x in (shard, *whole):
            x *= max_norm / norm
    return norm
