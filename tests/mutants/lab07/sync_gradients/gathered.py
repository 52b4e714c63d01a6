"""expect: lab07.sync_gradients.bytes

All ranks get all gradients, and each picks what it needs.
"""

import torch
import torch.distributed as dist


def sync_gradients(dense, experts, dp, ep, both):
    size, rank = dist.get_world_size(both), dist.get_rank(both)
    share = dist.get_world_size(ep)
    for p in [*dense, *experts]:
        every = [torch.empty_like(p) for _ in range(size)]
        dist.all_gather(every, p.grad, group=both)
        own = every if any(p is q for q in dense) else every[rank % share :: share]
        p.grad = sum(g.detach() for g in own) / size
