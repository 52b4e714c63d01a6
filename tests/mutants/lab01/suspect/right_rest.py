"""What is left behind the segment decides."""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = bool(layers[start + every :])
        x = recompute(segment, x) if again else segment(x)
    return x
