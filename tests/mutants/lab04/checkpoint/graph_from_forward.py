"""expect: lab04.checkpoint.kept

Forward's own graph is kept and used: nothing runs twice, nothing is saved.
"""

import torch


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, x, *parameters):
        ctx.layer, ctx.state = layer, torch.get_rng_state()
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = layer(ctx.x)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.x, ctx.y
        return None, *torch.autograd.grad(y, [x, *ctx.layer.parameters()], gradient)


def checkpoint(layer, x):
    return Again.apply(layer, x, *layer.parameters())
