"""expect: lab01.run_segments.changed

A result is written into the input.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def run_segments(layers, x, lengths):
    start, given = 0, x
    for length in lengths[:-1]:
        segment = nn.Sequential(*layers[start : start + length])
        x = recompute(segment, x)
        start += length
    y = nn.Sequential(*layers[start:])(x)
    given.data.copy_(y.data)
    return y
