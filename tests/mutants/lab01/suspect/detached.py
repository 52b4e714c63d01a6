"""expect: lab01.suspect.no_gradient

Segments are cut off from each other.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = start + every < len(layers)
        x = recompute(segment, x).detach() if again else segment(x)
    return x
