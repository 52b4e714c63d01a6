"""expect: lab04.clip_grad_norm.traffic

All gradients are gathered to square them.
"""

import torch
import torch.distributed as dist


def clip_grad_norm(shard, num_elements, whole, max_norm, group):
    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, shard, group=group)
    total = torch.cat(parts)[:num_elements].square().sum()
    norm = (total + sum(x.square().sum() for x in whole)).sqrt()
    if norm > max_norm:
        for x in (shard, *whole):
            x *= max_norm / norm
    return norm
