"""expect: lab01.run_segments.result

The input of a segment is added to its result once more.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def run_segments(layers, x, lengths):
    start = 0
    for length in lengths[:-1]:
        segment = nn.Sequential(*layers[start : start + length])
        x = x + recompute(segment, x)
        start += length
    return nn.Sequential(*layers[start:])(x)
