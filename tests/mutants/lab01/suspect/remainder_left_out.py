"""expect: lab01.suspect.first

Layers that fill no segment never run.
"""

from torch import nn

from labkit.parallel.recompute import recompute


def suspect(layers, x, every):
    for start in range(0, len(layers) - len(layers) % every, every):
        segment = nn.Sequential(*layers[start : start + every])
        again = start + every < len(layers)
        x = recompute(segment, x) if again else segment(x)
    return x
