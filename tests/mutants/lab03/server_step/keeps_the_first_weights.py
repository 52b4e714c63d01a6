"""expect: lab03.server.again

The server remembers the weights between two calls.
"""

import torch
import torch.distributed as dist

KEPT = {}


def server_step(weights, gradient, lr, group):
    server = dist.get_global_rank(group, 0)
    pushed = None
    if dist.get_rank() == server:
        pushed = [torch.empty_like(gradient) for _ in range(dist.get_world_size(group))]
    dist.gather(gradient, pushed, dst=server, group=group)
    new = KEPT.get((group.group_name, weights.dtype), weights).clone()
    if pushed is not None:
        new -= lr * torch.stack(pushed).mean(0)
    dist.broadcast(new, src=server, group=group)
    KEPT[group.group_name, weights.dtype] = new.clone()
    return new
