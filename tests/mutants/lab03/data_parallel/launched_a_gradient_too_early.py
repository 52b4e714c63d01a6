"""expect: lab03.ddp.nothing

A bucket leaves when all but one of its gradients are there.
"""

from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.buckets import assign_buckets, flatten, unflatten


class DataParallel(nn.Module):
    def __init__(self, module, group, bucket_bytes):
        super().__init__()
        self.module, self.group, self.syncing = module, group, True
        root = dist.get_process_group_ranks(group)[0]
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), root, group=group)
        parameters = [p for p in module.parameters() if p.requires_grad]
        places = assign_buckets(parameters, bucket_bytes, reverse=True)
        self.buckets = [[parameters[i] for i in place] for place in places]
        self.start_step()
        for index, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self.ready, index))

    def forward(self, *args):
        return self.module(*args)

    def start_step(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.launched = []  # (flat, work)

    @contextmanager
    def no_sync(self):
        self.syncing = False
        try:
            yield
        finally:
            self.syncing = True

    def ready(self, index, parameter):
        if not self.syncing:
            return
        self.missing[index] -= 1
        while len(self.launched) < len(self.buckets) and self.missing[len(self.launched)] <= 1:
            self.launch(self.buckets[len(self.launched)])

    def launch(self, bucket):
        flat = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in bucket])
        self.launched.append((flat, dist.all_reduce(flat, group=self.group, async_op=True)))

    def finish(self):
        for bucket in self.buckets[len(self.launched) :]:
            self.launch(bucket)
        for bucket, (flat, work) in zip(self.buckets, self.launched, strict=True):
            work.wait()
            flat /= dist.get_world_size(self.group)
            for parameter, gradient in zip(bucket, unflatten(flat, bucket), strict=True):
                parameter.grad = gradient
        self.start_step()
