"""expect: lab01.suspect.changed

Layers are taken out of the list.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = start + every < len(layers)
        x = recompute(segment, x) if again else segment(x)
    layers.clear()
    return x
