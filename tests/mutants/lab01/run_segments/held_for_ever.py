"""expect: lab01.run_segments.peak

What the second run keeps stays in a list.
"""

import torch
from torch import nn

KEPT = []


class Again(torch.autograd.Function):
    @staticmethod
    def forward(context, segment, anchor, x):
        context.segment, context.state = segment, torch.get_rng_state()
        context.save_for_backward(x)
        return segment(x)

    @staticmethod
    def backward(context, gradient):
        x = context.saved_tensors[0].detach().requires_grad_()
        before = torch.get_rng_state()
        torch.set_rng_state(context.state)
        with torch.enable_grad():
            y = context.segment(x)
            y.backward(gradient, retain_graph=True)
        KEPT.append(y)
        torch.set_rng_state(before)
        return None, None, x.grad


def run_segments(layers, x, lengths):
    start, anchor = 0, torch.ones((), requires_grad=True)
    for length in lengths[:-1]:
        x = Again.apply(nn.Sequential(*layers[start : start + length]), anchor, x)
        start += length
    return nn.Sequential(*layers[start:])(x)
