"""expect: lab04.checkpoint.gradients

Parameters get the mean over rows, where the loss is a sum.
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
        of_x, *others = torch.autograd.grad(y, [x, *ctx.layer.parameters()], gradient)
        return None, of_x, *(other / len(x) for other in others)


def checkpoint(layer, x):
    return Again.apply(layer, x, *layer.parameters())
