"""expect: lab01.run_segments.never

Nothing is recomputed.
"""

from torch import nn


def run_segments(layers, x, lengths):
    start = 0
    for length in lengths[:-1]:
        segment = nn.Sequential(*layers[start : start + length])
        x = segment(x)
        start += length
    return nn.Sequential(*layers[start:])(x)
