"""An autograd function a layer that runs forward again: weights are whole inside it only."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import pad

from labkit.comm.buckets import flatten
from labkit.comm.handmade import ring_all_gather, ring_reduce_scatter


class Sharded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, layer, shapes, group):
        ctx.save_for_backward(x, shard)
        ctx.rest = layer, shapes, group
        fill(layer, shapes, shard, group)
        y = layer(x)
        empty(layer)
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, shard = ctx.saved_tensors
        layer, shapes, group = ctx.rest
        fill(layer, shapes, shard, group)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = layer(x)
        of_x, *others = torch.autograd.grad(y, [x, *layer.parameters()], gradient)
        del y
        empty(layer)
        mine = ring_reduce_scatter(padded(others, group), group) / dist.get_world_size(group)
        return of_x, mine, None, None, None


def padded(tensors, group):
    flat = flatten(tensors)
    return pad(flat, (0, -len(flat) % dist.get_world_size(group)))


def fill(layer, shapes, shard, group):
    whole, start = ring_all_gather(shard, group), 0
    for p, shape in zip(layer.parameters(), shapes, strict=True):
        p.data = whole[start : start + shape.numel()].view(shape)
        start += shape.numel()


def empty(layer):
    for p in layer.parameters():
        p.data = p.data.new_empty(0)


class Zero3(nn.Module):
    def __init__(self, layers, make_optimizer, group):
        super().__init__()
        self.group, self.layers, self.shards, self.shapes = group, list(layers), [], []
        for layer in self.layers:
            parameters = list(layer.parameters())
            self.shapes.append([p.shape for p in parameters])
            shard = padded(parameters, group).chunk(dist.get_world_size(group))[
                dist.get_rank(group)
            ]
            self.shards.append(shard.clone().requires_grad_())
            empty(layer)
        self.optimizer = make_optimizer(self.shards)

    def forward(self, x):
        for layer, shard, shapes in zip(self.layers, self.shards, self.shapes, strict=True):
            x = Sharded.apply(x, shard, layer, shapes, self.group)
        return x

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
