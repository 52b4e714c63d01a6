"""expect: lab03.server.nobody_serves

All gradients and all weights go to everybody.
"""

import torch
import torch.distributed as dist


def server_step(weights, gradient, lr, group):
    size = dist.get_world_size(group)
    pushed = [torch.empty_like(gradient) for _ in range(size)]
    dist.all_gather(pushed, gradient, group=group)
    kept = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(kept, weights, group=group)
    return kept[0] - lr * torch.stack(pushed).mean(0)
