"""expect: lab01.suspect.last

One segment for all.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    every = len(layers)
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = start < len(layers)
        x = recompute(segment, x) if again else segment(x)
    return x
