"""expect: lab01.run_segments.gradient

Backward finds the last segment of the loop in every closure.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def run_segments(layers, x, lengths):
    start = 0
    for length in lengths[:-1]:
        segment = nn.Sequential(*layers[start : start + length])
        x = recompute(lambda x: segment(x), x)
        start += length
    return nn.Sequential(*layers[start:])(x)
