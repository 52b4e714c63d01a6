"""One category after the other."""

import torch

from labkit.model.transformer import Transformer

GIB = 2**30


def state_gib(config):
    with torch.device("meta"):
        sizes = [p.numel() for p in Transformer(config).parameters()]
    weights, gradients, master, moments = 2, 2, 4, 2 * 4
    return sum(size * (weights + gradients + master + moments) for size in sizes) / GIB
