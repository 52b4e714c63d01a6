"""expect: lab03.server.own_weights

The server sends the mean gradient, and every rank updates what it has.
"""

import torch
import torch.distributed as dist


def server_step(weights, gradient, lr, group):
    server, *workers = dist.get_process_group_ranks(group)
    if dist.get_rank() != server:
        dist.send(gradient, server, group)
        mean = torch.empty_like(gradient)
        dist.recv(mean, server, group)
        return weights - lr * mean
    total = gradient.clone()
    for worker in workers:
        incoming = torch.empty_like(gradient)
        dist.recv(incoming, worker, group)
        total += incoming
    mean = total / dist.get_world_size(group)
    for worker in workers:
        dist.send(mean, worker, group)
    return weights - lr * mean
