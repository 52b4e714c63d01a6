"""expect: lab03.suspect.of_means

The program of the bug hunt: every loss is a mean over its own tokens, and means are averaged.
"""

import torch.distributed as dist
from torch.nn.functional import cross_entropy

from labkit.comm.buckets import flatten, unflatten


def suspect(model, micro_batches, group):
    """Leave in p.grad the gradient of the mean loss over the scored tokens of all ranks.

    micro_batches: this rank's, pairs of inputs and targets [B, T]; a target of -100 is not scored.
    """
    model.zero_grad()
    for inputs, targets in micro_batches:
        logits = model(inputs)  # [B, T, V]
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        (loss / len(micro_batches)).backward()
    parameters = list(model.parameters())
    flat = flatten([p.grad for p in parameters])
    dist.all_reduce(flat, group=group)
    flat /= dist.get_world_size(group)
    for parameter, gradient in zip(parameters, unflatten(flat, parameters), strict=True):
        parameter.grad = gradient
