"""Waits when backward has ended, by autograd's own callback; the op itself averages."""

from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.buckets import assign_buckets, flatten, unflatten


class DataParallel(nn.Module):
    def __init__(self, module, group, bucket_bytes):
        super().__init__()
        self.module, self.group, self.syncing = module, group, True
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), dist.get_global_rank(group, 0), group=group)
        parameters = [p for p in module.parameters() if p.requires_grad]
        places = assign_buckets(parameters, bucket_bytes, reverse=True)
        self.buckets = [[parameters[i] for i in place] for place in places]
        self.missing, self.works = None, []
        for p in parameters:
            p.register_post_accumulate_grad_hook(self.ready)

    def forward(self, *args):
        if self.syncing:
            self.missing = [{id(p) for p in bucket} for bucket in self.buckets]
        return self.module(*args)

    @contextmanager
    def no_sync(self):
        self.syncing = False
        try:
            yield
        finally:
            self.syncing = True

    def ready(self, p):
        if self.syncing:
            if not self.works:
                torch.autograd.Variable._execution_engine.queue_callback(self.collect)
            for missing in self.missing:
                missing.discard(id(p))
            while len(self.works) < len(self.buckets) and not self.missing[len(self.works)]:
                self.launch()

    def launch(self):
        bucket = self.buckets[len(self.works)]
        for p in bucket:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = flatten([p.grad for p in bucket])
        work = dist.all_reduce(flat, dist.ReduceOp.AVG, group=self.group, async_op=True)
        self.works.append((flat, work))

    def collect(self):
        for _flat, work in self.works:
            work.wait()

    def finish(self):
        while len(self.works) < len(self.buckets):
            self.launch()
        self.collect()
        for bucket, (flat, _) in zip(self.buckets, self.works, strict=True):
            for p, gradient in zip(bucket, unflatten(flat, bucket), strict=True):
                p.grad.copy_(gradient)
        self.works = []
