"""expect: lab05.layer.calls

An all-gather of all parts, added here: N-1 times the bytes.
"""

import torch
import torch.distributed as dist


class CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x.contiguous(), group=group)
        return sum(parts)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def copy_to(x, group):
    return CopyTo.apply(x, group)


def reduce_from(x, group):
    return ReduceFrom.apply(x, group)


regions = copy_to, reduce_from
