"""expect: lab04.zero.optimizer_bytes

The optimizer is made for the parameters, whose gradients are put together again.
"""

from functools import partial

import torch.distributed as dist
from torch.nn.functional import pad

from labkit.comm.handmade import ring_all_gather, ring_reduce_scatter


def padded(x, group):
    return pad(x.detach().flatten(), (0, -x.numel() % dist.get_world_size(group)))


class Zero2:
    def __init__(self, parameters, make_optimizer, group):
        self.parameters, self.group = list(parameters), group
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        self.shards = [padded(p, group).chunk(size)[rank].clone() for p in self.parameters]
        self.optimizer = make_optimizer(self.parameters)
        for parameter, shard in zip(self.parameters, self.shards, strict=True):
            parameter.register_post_accumulate_grad_hook(partial(self.leave, shard))

    def leave(self, shard, parameter):
        mine = ring_reduce_scatter(padded(parameter.grad, self.group), self.group)
        mine /= dist.get_world_size(self.group)
        shard.grad = mine if shard.grad is None else shard.grad + mine
        parameter.grad = None

    def step(self):
        for parameter, shard in zip(self.parameters, self.shards, strict=True):
            whole = ring_all_gather(shard.grad, self.group)
            parameter.grad = whole[: parameter.numel()].view_as(parameter)
            shard.grad = None
        self.optimizer.step()
        self.optimizer.zero_grad()
