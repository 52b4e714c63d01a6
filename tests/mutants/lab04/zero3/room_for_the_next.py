"""expect: lab04.zero3.after_step

step() makes room for all layers, long before the next forward needs it.
"""

from functools import partial

import torch.distributed as dist
from torch import nn
from torch.nn.functional import pad

from labkit.comm.buckets import flatten, unflatten
from labkit.comm.handmade import ring_all_gather, ring_reduce_scatter


class Zero3(nn.Module):
    def __init__(self, layers, make_optimizer, group):
        super().__init__()
        self.layers, self.group = list(layers), group
        self.size, rank = dist.get_world_size(group), dist.get_rank(group)
        self.flats, self.shards = [], []
        for number, layer in enumerate(self.layers):
            flat = self.padded(list(layer.parameters()))
            self.shards.append(flat.chunk(self.size)[rank].clone())
            self.flats.append(flat)
            views = unflatten(
                flat[: sum(p.numel() for p in layer.parameters())], list(layer.parameters())
            )
            for p, view in zip(layer.parameters(), views, strict=True):
                p.data = view
                p.register_post_accumulate_grad_hook(partial(self.one_done, number))
            self.free(number)
        self.optimizer = make_optimizer(self.shards)

    def padded(self, tensors):
        flat = flatten(tensors)
        return pad(flat, (0, -len(flat) % self.size))

    def free(self, number):
        self.flats[number].untyped_storage().resize_(0)

    def gather(self, number, *_):
        flat = self.flats[number]
        flat.untyped_storage().resize_(flat.numel() * flat.element_size())
        flat.copy_(ring_all_gather(self.shards[number], self.group))

    def forward(self, x):
        for number, layer in enumerate(self.layers):
            self.gather(number)
            x = layer(x)
            x.register_hook(partial(self.gather_again, number))
            self.free(number)
        return x

    def gather_again(self, number, gradient):
        self.gather(number)

    def one_done(self, number, parameter):
        parameters = list(self.layers[number].parameters())
        if any(p.grad is None for p in parameters):
            return
        mine = (
            ring_reduce_scatter(self.padded([p.grad for p in parameters]), self.group) / self.size
        )
        shard = self.shards[number]
        shard.grad = mine if shard.grad is None else shard.grad + mine
        for p in parameters:
            p.grad = None
        self.free(number)

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.room = [shard.new_zeros(self.size * len(shard)) for shard in self.shards]
