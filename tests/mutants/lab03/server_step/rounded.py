"""expect: lab03.server.training

The server adds in float32, which is enough for small whole numbers.
"""

import torch
import torch.distributed as dist


def server_step(weights, gradient, lr, group):
    server, *workers = dist.get_process_group_ranks(group)
    if dist.get_rank() != server:
        dist.send(gradient, server, group)
        new = torch.empty_like(weights)
        dist.recv(new, server, group)
        return new
    total = gradient.clone()
    for worker in workers:
        incoming = torch.empty_like(gradient)
        dist.recv(incoming, worker, group)
        total += incoming
    mean = total.float() / dist.get_world_size(group)
    new = weights - lr * mean.to(weights.dtype)
    for worker in workers:
        dist.send(new, worker, group)
    return new
