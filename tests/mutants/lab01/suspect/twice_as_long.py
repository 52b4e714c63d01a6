"""expect: lab01.suspect.again

Segments of twice the length.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    every = 2 * every
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = start + every < len(layers)
        x = recompute(segment, x) if again else segment(x)
    return x
