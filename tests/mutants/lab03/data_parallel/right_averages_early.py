"""Divides before the sum, in views of buckets that overshoot, without labkit's helpers."""

from contextlib import contextmanager

import torch
import torch.distributed as dist


class Bucket:
    def __init__(self):
        self.parameters, self.num_bytes, self.ready, self.work = [], 0, set(), None

    def launch(self, group):
        parts = []
        for p in self.parameters:
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            parts.append(gradient.reshape(-1) / group.size())
        self.flat = torch.cat(parts)
        self.work = dist.all_reduce(self.flat, group=group, async_op=True)


class DataParallel:
    def __init__(self, module, group, bucket_bytes):
        self.module, self.group, self.quiet, self.next = module, group, 0, 0
        for tensor in list(module.parameters()) + list(module.buffers()):
            dist.broadcast(tensor.data, group=group, group_src=0)
        self.buckets = [Bucket()]
        for p in reversed([p for p in module.parameters() if p.requires_grad]):
            if self.buckets[-1].num_bytes >= bucket_bytes:
                self.buckets.append(Bucket())
            self.buckets[-1].parameters.append(p)
            self.buckets[-1].num_bytes += p.nbytes
            p.register_post_accumulate_grad_hook(self.make_hook(self.buckets[-1]))

    def make_hook(self, bucket):
        def hook(p):
            if not self.quiet:
                bucket.ready.add(p)
                while self.next < len(self.buckets) and self.is_ready(self.buckets[self.next]):
                    self.launch_next()

        return hook

    def is_ready(self, bucket):
        return len(bucket.ready) == len(bucket.parameters)

    def launch_next(self):
        self.buckets[self.next].launch(self.group)
        self.next += 1

    def __call__(self, *args):
        return self.module(*args)

    @contextmanager
    def no_sync(self):
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1

    def finish(self):
        while self.next < len(self.buckets):
            self.launch_next()
        for bucket in self.buckets:
            bucket.work.wait()
            offset = 0
            for p in bucket.parameters:
                p.grad = bucket.flat[offset : offset + p.numel()].view_as(p).clone()
                offset += p.numel()
            bucket.ready.clear()
        self.next = 0
