"""expect: lab03.server.bytes

Workers push their weights beside the gradient.
"""

import torch
import torch.distributed as dist


def server_step(weights, gradient, lr, group):
    server, *workers = dist.get_process_group_ranks(group)
    if dist.get_rank() != server:
        dist.send(torch.cat([gradient, weights]), server, group)
        new = torch.empty_like(weights)
        dist.recv(new, server, group)
        return new
    total = gradient.clone()
    for worker in workers:
        incoming = torch.empty(2 * len(gradient), dtype=gradient.dtype)
        dist.recv(incoming, worker, group)
        total += incoming[: len(gradient)]
    new = weights - lr * total / dist.get_world_size(group)
    for worker in workers:
        dist.send(new, worker, group)
    return new
