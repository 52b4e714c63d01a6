"""With torch's own checkpoint."""

from torch import nn
from torch.utils.checkpoint import checkpoint


def suspect(layers, x, every):
    for start in range(0, len(layers), every):
        segment = nn.Sequential(*layers[start : start + every])
        if start + every < len(layers):
            x = checkpoint(segment, x, use_reentrant=False)
        else:
            x = segment(x)
    return x
