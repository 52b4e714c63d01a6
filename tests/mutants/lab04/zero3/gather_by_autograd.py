"""expect: lab04.zero3.after_forward

A gather that autograd differentiates: the graph keeps every gathered layer.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import pad

from labkit.comm.buckets import flatten
from labkit.comm.collectives import all_gather


class Zero3(nn.Module):
    def __init__(self, layers, make_optimizer, group):
        super().__init__()
        self.layers, self.group, self.shards, self.shapes = list(layers), group, [], []
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        for layer in self.layers:
            self.shapes.append({name: p.shape for name, p in layer.named_parameters()})
            flat = flatten(list(layer.parameters()))
            shard = pad(flat, (0, -len(flat) % size)).chunk(size)[rank].clone()
            self.shards.append(shard.requires_grad_())
            for p in layer.parameters():
                p.data = p.data.new_empty(0)
        self.optimizer = make_optimizer(self.shards)

    def forward(self, x):
        for layer, shard, shapes in zip(self.layers, self.shards, self.shapes, strict=True):
            whole, start, named = all_gather(shard, self.group), 0, {}
            for name, shape in shapes.items():
                named[name] = whole[start : start + shape.numel()].view(shape)
                start += shape.numel()
            x = torch.func.functional_call(layer, named, x)
        return x

    def step(self):
        for shard in self.shards:
            shard.grad /= dist.get_world_size(self.group)
        self.optimizer.step()
        self.optimizer.zero_grad()
