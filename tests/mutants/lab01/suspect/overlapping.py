"""expect: lab01.suspect.first

Segments overlap by a layer.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every + 1])
        again = start + every < len(layers)
        x = recompute(segment, x) if again else segment(x)
    return x
