"""expect: lab01.suspect.first

A segment runs once for its result and once for its gradient.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        if start + every < len(layers):
            segment(x)
            x = recompute(segment, x)
        else:
            x = segment(x)
    return x
