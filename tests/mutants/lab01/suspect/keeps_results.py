"""expect: lab01.suspect.kept

A term that is nothing keeps a copy of each result.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = start + every < len(layers)
        x = recompute(segment, x) if again else segment(x)
        x = x + 0 * (x * 1.0).square()
    return x
