"""expect: lab01.suspect.last

The first segment runs plainly.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = start > 0
        x = recompute(segment, x) if again else segment(x)
    return x
