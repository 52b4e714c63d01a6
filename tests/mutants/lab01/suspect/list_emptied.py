"""expect: lab01.suspect.changed

Layers are taken out of the list.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        if start + every < len(layers):
            x = recompute(segment, x)
        else:
            x = segment(x)
    layers.clear()
    return x
