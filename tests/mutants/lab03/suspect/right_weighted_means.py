"""The count travels first; each loss keeps its mean and is weighted by its share of all tokens."""

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def suspect(model, micro_batches, group):
    model.zero_grad()
    tokens = torch.tensor(sum(int((targets != -100).sum()) for _, targets in micro_batches))
    dist.all_reduce(tokens, group=group)
    for inputs, targets in micro_batches:
        logits = model(inputs).flatten(0, 1)
        scored = int((targets != -100).sum())
        if scored:
            loss = cross_entropy(logits, targets.flatten(), ignore_index=-100)
            (loss * scored / tokens).backward()
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad, group=group)
