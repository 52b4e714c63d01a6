"""expect: lab05.regions.copy_backward

copy_to never adds the ranks' gradients.
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
        return grad, None


class ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def copy_to(x, group):
    return CopyTo.apply(x, group)


def reduce_from(x, group):
    return ReduceFrom.apply(x, group)


regions = copy_to, reduce_from
