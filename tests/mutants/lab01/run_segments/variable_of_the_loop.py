"""expect: lab01.run_segments.second_run

One function for all segments: backward finds the last one of the loop in it.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def run_segments(layers, x, lengths):
    start = 0

    def run(x):
        return segment(x)

    for length in lengths[:-1]:
        segment = nn.Sequential(*layers[start : start + length])
        x = recompute(run, x)
        start += length
    return nn.Sequential(*layers[start:])(x)
