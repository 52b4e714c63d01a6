"""expect: lab03.server.input

The server sums in its own gradient.
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
    total = gradient
    for worker in workers:
        incoming = torch.empty_like(gradient)
        dist.recv(incoming, worker, group)
        total += incoming
    new = weights - lr * total / dist.get_world_size(group)
    for worker in workers:
        dist.send(new, worker, group)
    return new
