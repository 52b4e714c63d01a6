"""expect: lab05.layer.other_group

The group is left out, so the world adds.
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
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def copy_to(x, group):
    return CopyTo.apply(x, group)


def reduce_from(x, group):
    return ReduceFrom.apply(x, group)


regions = copy_to, reduce_from
