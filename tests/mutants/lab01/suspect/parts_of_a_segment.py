"""expect: lab01.suspect.often

The last segment is right; inside of the others every layer is recomputed too.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def nested(segment, x):
    for layer in segment:
        x = recompute(layer, x)
    return x


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = start + every < len(layers)
        x = recompute(lambda x, s=segment: nested(s, x), x) if again else segment(x)
    return x
