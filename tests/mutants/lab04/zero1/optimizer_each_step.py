"""expect: lab04.zero.state

The optimizer is made anew each step, and forgets its averages.
"""

import torch.distributed as dist
from torch.nn.functional import pad

from labkit.comm.buckets import flatten, unflatten
from labkit.comm.handmade import ring_all_gather, ring_reduce_scatter


class Zero1:
    def __init__(self, parameters, make_optimizer, group):
        self.parameters, self.group = list(parameters), group
        flat = self.padded(self.parameters)
        self.shard = flat.chunk(dist.get_world_size(group))[dist.get_rank(group)].clone()
        self.make_optimizer = make_optimizer

    def padded(self, tensors):
        flat = flatten(tensors)
        return pad(flat, (0, -len(flat) % dist.get_world_size(self.group)))

    def step(self):
        gradients = [p.new_zeros(p.shape) if p.grad is None else p.grad for p in self.parameters]
        mine = ring_reduce_scatter(self.padded(gradients), self.group)
        self.shard.grad = mine / dist.get_world_size(self.group)
        self.make_optimizer([self.shard]).step()
        flat = ring_all_gather(self.shard, self.group)
        size = sum(p.numel() for p in self.parameters)
        for parameter, new in zip(
            self.parameters, unflatten(flat[:size], self.parameters), strict=True
        ):
            parameter.data.copy_(new)
