"""expect: lab04.zero.reduced

Each gradient is all-reduced, then cut.
"""

from functools import partial

import torch.distributed as dist
from torch.nn.functional import pad

from labkit.comm.handmade import ring_all_gather


def padded(x, group):
    return pad(x.detach().flatten(), (0, -x.numel() % dist.get_world_size(group)))


class Zero2:
    def __init__(self, parameters, make_optimizer, group):
        self.parameters, self.group = list(parameters), group
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        self.shards = [padded(p, group).chunk(size)[rank].clone() for p in self.parameters]
        self.optimizer = make_optimizer(self.shards)
        for parameter, shard in zip(self.parameters, self.shards, strict=True):
            parameter.register_post_accumulate_grad_hook(partial(self.leave, shard))

    def leave(self, shard, parameter):
        whole = padded(parameter.grad, self.group)
        dist.all_reduce(whole, group=self.group)
        mine = whole.chunk(dist.get_world_size(self.group))[dist.get_rank(self.group)].clone()
        mine /= dist.get_world_size(self.group)
        shard.grad = mine if shard.grad is None else shard.grad + mine
        parameter.grad = None

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        for parameter, shard in zip(self.parameters, self.shards, strict=True):
            whole = ring_all_gather(shard, self.group)
            parameter.data.copy_(whole[: parameter.numel()].view_as(parameter))
