"""expect: run.raised

Gradients come back in another order than the arguments.
"""

import torch


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, layer, x, *parameters):
        ctx.layer, ctx.state = layer, torch.get_rng_state()
        ctx.save_for_backward(x)
        return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            x = x.detach().requires_grad_()
            y = ctx.layer(x)
        return None, *torch.autograd.grad(y, [*reversed(list(ctx.layer.parameters())), x], gradient)


def checkpoint(layer, x):
    return Again.apply(layer, x, *layer.parameters())
