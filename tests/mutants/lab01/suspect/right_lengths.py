"""Segments are listed first."""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    segments = [layers[start : start + every] for start in range(0, len(layers), every)]
    for segment in segments[:-1]:
        x = recompute(nn.Sequential(*segment), x)
    return nn.Sequential(*segments[-1])(x)
