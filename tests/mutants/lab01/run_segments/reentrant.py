"""expect: lab01.run_segments.no_gradient

The old checkpoint, which needs an input that asks for its gradient.
"""

from torch import nn
from torch.utils.checkpoint import checkpoint


def run_segments(layers, x, lengths):
    start = 0
    for length in lengths[:-1]:
        x = checkpoint(nn.Sequential(*layers[start : start + length]), x, use_reentrant=True)
        start += length
    return nn.Sequential(*layers[start:])(x)
