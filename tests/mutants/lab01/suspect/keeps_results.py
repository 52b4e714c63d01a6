"""expect: lab01.suspect.kept

What is recomputed is kept for a look at it.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        if start + every < len(layers):
            x = recompute(segment, x)
            x = x + 0 * (x * 1.0).square()
        else:
            x = segment(x)
    return x
