"""expect: lab01.run_segments.kept

A term that is nothing keeps a copy of each segment's result.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def run_segments(layers, x, lengths):
    start = 0
    for length in lengths[:-1]:
        segment = nn.Sequential(*layers[start : start + length])
        x = recompute(segment, x)
        copy = x * 1.0
        x = x + 0 * copy * copy
        start += length
    return nn.Sequential(*layers[start:])(x)
