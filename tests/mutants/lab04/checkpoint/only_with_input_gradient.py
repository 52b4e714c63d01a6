"""expect: lab04.checkpoint.no_gradients

If the input needs no gradient, neither does the result.
"""

import torch


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, anchor, layer):
        ctx.layer, ctx.x, ctx.state = layer, x.detach(), torch.get_rng_state()
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        x = ctx.x.clone().requires_grad_()
        with torch.enable_grad():
            ctx.layer(x).backward(gradient)
        torch.set_rng_state(now)
        return x.grad, None, None


def checkpoint(layer, x):
    return Again.apply(x, torch.ones(()), layer)
