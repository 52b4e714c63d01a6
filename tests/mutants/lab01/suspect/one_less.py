"""expect: lab01.suspect.again

The last but one runs plainly where it need not.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        if start + every + 1 < len(layers):
            x = recompute(segment, x)
        else:
            x = segment(x)
    return x
