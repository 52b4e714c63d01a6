"""expect: lab03.server.bytes

Weights are pulled before the step and after it.
"""

import torch
import torch.distributed as dist


def server_step(weights, gradient, lr, group):
    server = dist.get_global_rank(group, 0)
    old = weights.clone()
    dist.broadcast(old, src=server, group=group)
    pushed = None
    if dist.get_rank() == server:
        pushed = [torch.empty_like(gradient) for _ in range(dist.get_world_size(group))]
    dist.gather(gradient, pushed, dst=server, group=group)
    new = old.clone()
    if pushed is not None:
        new -= lr * torch.stack(pushed).mean(0)
    dist.broadcast(new, src=server, group=group)
    return new
