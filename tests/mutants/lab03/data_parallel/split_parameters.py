"""expect: lab03.ddp.split

One long buffer is cut every bucket_bytes, through the middle of parameters.
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
        self.bucket_bytes = bucket_bytes
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
        complete = 0
        while complete < len(self.buckets) and self.missing[complete] == 0:
            complete += 1
        self.launch_full(complete, rest=False)

    def launch_full(self, complete, rest):
        parameters = [p for bucket in self.buckets[:complete] for p in bucket]
        if not parameters:
            return
        whole = flatten([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters])
        pieces = whole.split(max(1, self.bucket_bytes // 8))
        for piece in pieces[len(self.launched) :]:
            if rest or len(piece) == self.bucket_bytes // 8:
                flat = piece.clone()
                work = dist.all_reduce(flat, group=self.group, async_op=True)
                self.launched.append((flat, work))

    def finish(self):
        self.launch_full(len(self.buckets), rest=True)
        for _flat, work in self.launched:
            work.wait()
        bucket = [p for bucket in self.buckets for p in bucket]
        whole = torch.cat([flat for flat, _ in self.launched]) / dist.get_world_size(self.group)
        for parameter, gradient in zip(bucket, unflatten(whole, bucket), strict=True):
            parameter.grad = gradient
        self.start_step()
