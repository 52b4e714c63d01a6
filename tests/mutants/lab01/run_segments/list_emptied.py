"""expect: lab01.run_segments.changed

Layers are taken out of the list.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def run_segments(layers, x, lengths):
    start = 0
    for length in lengths[:-1]:
        segment = nn.Sequential(*[layers.pop(0) for _ in range(length)])
        x = recompute(segment, x)
    return nn.Sequential(*layers[start:])(x)
