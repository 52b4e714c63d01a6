"""expect: lab01.suspect.again

The last but one runs plainly where it need not.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = start + every + 1 < len(layers)
        x = recompute(segment, x) if again else segment(x)
    return x
