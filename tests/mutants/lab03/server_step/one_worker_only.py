"""expect: lab03.server.values

Only the first worker's gradient is received; each is answered.
"""

import torch
import torch.distributed as dist


def server_step(weights, gradient, lr, group):
    server = dist.get_global_rank(group, 0)
    pushed = None
    if dist.get_rank() == server:
        pushed = [torch.empty_like(gradient) for _ in range(dist.get_world_size(group))]
    dist.gather(gradient, pushed, dst=server, group=group)
    new = weights.clone()
    if pushed is not None:
        new -= lr * torch.stack(pushed[:2]).mean(0)
    dist.broadcast(new, src=server, group=group)
    return new
