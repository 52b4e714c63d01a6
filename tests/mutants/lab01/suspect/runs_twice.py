"""expect: lab01.suspect.first

A segment runs once for its result and once for its gradient.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = start + every < len(layers)
        segment(x)
        x = recompute(segment, x) if again else segment(x)
    return x
