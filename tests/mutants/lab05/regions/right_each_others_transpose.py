"""Each backward is the other one's forward."""

import torch
import torch.distributed as dist


def summed(x, group):
    total = torch.empty(x.shape, dtype=x.dtype)
    total.copy_(x)
    dist.all_reduce(total, group=group)
    return total


class Region(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, sums_forward):
        ctx.group, ctx.sums_backward = group, not sums_forward
        return summed(x, group) if sums_forward else x

    @staticmethod
    def backward(ctx, grad):
        return (summed(grad, ctx.group) if ctx.sums_backward else grad), None, None


def copy_to(x, group):
    return Region.apply(x, group, False)


def reduce_from(x, group):
    return Region.apply(x, group, True)


regions = copy_to, reduce_from
