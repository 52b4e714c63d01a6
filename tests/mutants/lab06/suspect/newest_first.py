"""expect: lab06.suspect.values

What was run last comes back first, and meets another micro-batch's gradient.
"""

import torch
import torch.distributed as dist


def suspect(stage, num_micro_batches, inputs, targets, loss_of, boundary, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    before = dist.get_global_rank(group, rank - 1) if rank > 0 else None
    after = dist.get_global_rank(group, rank + 1) if rank < size - 1 else None
    in_flight, sending, losses = [], [], []

    def forward(i):
        x = inputs[i] if before is None else torch.empty_like(boundary)
        if before is not None:
            dist.recv(x, before, group)
            x.requires_grad_()
        y = stage(x)
        if after is None:
            y = loss_of(y, targets[i]) / num_micro_batches
            losses.append(y.item())
        else:
            sending.append(dist.isend(y.detach(), after, group))
        in_flight.append((x, y))

    def backward():
        x, y = in_flight.pop()
        gradient = None if after is None else torch.empty_like(boundary)
        if after is not None:
            dist.recv(gradient, after, group)
        y.backward(gradient)
        if before is not None:
            sending.append(dist.isend(x.grad, before, group))

    warm_up = min(num_micro_batches, size - 1 - rank)
    for i in range(num_micro_batches):
        forward(i)
        if i >= warm_up:
            backward()
    while in_flight:
        backward()
    for work in sending:
        work.wait()
    return sum(losses) if after is None else None
