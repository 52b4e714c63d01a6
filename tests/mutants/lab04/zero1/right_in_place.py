"""Parameters are views of one flat buffer, and the share is a slice of it: no copy anywhere."""

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from labkit.comm.buckets import flatten, unflatten
from labkit.comm.handmade import ring_all_gather, ring_reduce_scatter


class Zero1:
    def __init__(self, parameters, make_optimizer, group):
        self.parameters, self.group, self.size = list(parameters), group, dist.get_world_size(group)
        self.flat = self.padded(self.parameters)
        self.length = sum(p.numel() for p in self.parameters)
        views = unflatten(self.flat[: self.length], self.parameters)
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view
        self.shard = self.flat.chunk(self.size)[dist.get_rank(group)]
        self.optimizer = make_optimizer([self.shard])

    def padded(self, tensors):
        flat = flatten(tensors)
        return pad(flat, (0, -len(flat) % self.size))

    @torch.no_grad()
    def step(self):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        self.shard.grad = ring_reduce_scatter(self.padded(gradients) / self.size, self.group)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.flat.copy_(ring_all_gather(self.shard, self.group))
