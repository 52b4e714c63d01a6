"""With torch's own checkpoint."""

from torch import nn
from torch.utils.checkpoint import checkpoint


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        again = start + every < len(layers)
        x = checkpoint(segment, x, use_reentrant=False) if again else segment(x)
    return x
