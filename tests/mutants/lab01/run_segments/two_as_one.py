"""expect: lab01.run_segments.again

All segments but the last are one.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def run_segments(layers, x, lengths):
    start = 0
    for length in [sum(lengths[:-1])][: len(lengths) - 1]:
        segment = nn.Sequential(*layers[start : start + length])
        x = recompute(segment, x)
        start += length
    return nn.Sequential(*layers[start:])(x)
