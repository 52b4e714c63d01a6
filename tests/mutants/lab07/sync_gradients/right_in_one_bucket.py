"""One message for each kind."""

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_reduce


def sync_gradients(dense, experts, dp, ep, both):
    for parameters, group in ((dense, both), (experts, dp)):
        flat = torch.cat([p.grad.flatten() for p in parameters])
        flat = all_reduce(flat, group) / dist.get_world_size(both)
        parts = flat.split([p.numel() for p in parameters])
        for p, part in zip(parameters, parts, strict=True):
            p.grad = part.view_as(p)
