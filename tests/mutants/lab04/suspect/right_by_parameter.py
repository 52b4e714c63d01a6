"""One share a parameter, torch's collectives, weights that point into what was gathered."""

import torch
import torch.distributed as dist
from torch.nn.functional import pad


class Suspect:
    def __init__(self, parameters, make_optimizer, group):
        self.parameters, self.group = list(parameters), group
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.shards = [self.rows(p.detach())[self.rank].clone() for p in self.parameters]
        self.optimizer = make_optimizer(self.shards)

    def rows(self, x):
        flat = x.flatten()
        return pad(flat, (0, -len(flat) % self.size)).view(self.size, -1)

    @torch.no_grad()
    def step(self):
        for p, shard in zip(self.parameters, self.shards, strict=True):
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            shard.grad = torch.empty_like(shard)
            dist.reduce_scatter(
                shard.grad, list(self.rows(gradient).clone()), dist.ReduceOp.SUM, self.group
            )
            shard.grad /= self.size
        self.optimizer.step()
        for p, shard in zip(self.parameters, self.shards, strict=True):
            whole = shard.new_empty(self.size * len(shard))
            dist.all_gather(list(whole.view(self.size, -1)), shard, self.group)
            p.data = whole[: p.numel()].view_as(p)
