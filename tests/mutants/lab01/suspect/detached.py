"""expect: lab01.suspect.no_gradient

Segments are cut off from each other.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        if start + every < len(layers):
            x = recompute(segment, x).detach()
        else:
            x = segment(x)
    return x
