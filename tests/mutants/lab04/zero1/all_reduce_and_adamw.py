"""expect: lab04.zero.optimizer_bytes

Data parallelism: gradients are averaged, every rank keeps the whole state.
"""

import torch
import torch.distributed as dist


class Zero1:
    def __init__(self, parameters, make_optimizer, group):
        self.parameters, self.group = list(parameters), group
        self.optimizer = make_optimizer(self.parameters)

    def step(self):
        for p in self.parameters:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(p.grad, group=self.group)
            p.grad /= dist.get_world_size(self.group)
        self.optimizer.step()
