"""expect: lab03.suspect.of_rank_means

Each rank's mean is right; the mean of the ranks' means is not.
"""

import torch.distributed as dist
from torch.nn.functional import cross_entropy

from labkit.comm.buckets import flatten, unflatten


def suspect(model, micro_batches, group):
    model.zero_grad()
    count = 0
    for inputs, targets in micro_batches:
        logits = model(inputs)  # [B, T, V]
        loss = cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
        )
        loss.backward()
        count += int((targets != -100).sum())
    parameters = list(model.parameters())
    flat = flatten([p.grad for p in parameters]) / count
    dist.all_reduce(flat, group=group)
    averaged = unflatten(flat / dist.get_world_size(group), parameters)
    for parameter, gradient in zip(parameters, averaged, strict=True):
        parameter.grad = gradient
