"""expect: lab01.run_segments.last

All layers are one segment.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def run_segments(layers, x, lengths):
    return recompute(nn.Sequential(*layers), x)
