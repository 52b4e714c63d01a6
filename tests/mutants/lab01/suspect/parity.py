"""expect: lab01.suspect.never

Remainders are compared, which divides otherwise.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = len(layers) % every == 0 and start + every < len(layers)
        x = recompute(segment, x) if again else segment(x)
    return x
