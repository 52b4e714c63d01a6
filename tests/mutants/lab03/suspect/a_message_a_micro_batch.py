"""expect: lab03.suspect.bytes

Gradients travel after every micro-batch.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from labkit.comm.buckets import flatten, unflatten


def suspect(model, micro_batches, group):
    model.zero_grad()
    count, parameters, total = 0, list(model.parameters()), 0
    longest = torch.tensor(len(micro_batches))
    dist.all_reduce(longest, dist.ReduceOp.MAX, group=group)
    for inputs, targets in micro_batches:
        logits = model(inputs)  # [B, T, V]
        loss = cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
        )
        loss.backward()
        count += int((targets != -100).sum())
        part = flatten([p.grad for p in parameters])
        model.zero_grad()
        dist.all_reduce(part, group=group)
        total = total + part
    for _ in range(int(longest) - len(micro_batches)):
        part = torch.zeros_like(total)
        dist.all_reduce(part, group=group)
        total = total + part
    tokens = torch.tensor([count]).to(total)
    dist.all_reduce(tokens, group=group)
    flat = torch.cat([total, tokens])
    averaged = unflatten(flat[:-1] / flat[-1], parameters)
    for parameter, gradient in zip(parameters, averaged, strict=True):
        parameter.grad = gradient
