"""expect: lab01.suspect.again

Each layer is recomputed by itself.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = start + every < len(layers)
        for layer in segment:
            x = recompute(layer, x) if again else layer(x)
    return x
