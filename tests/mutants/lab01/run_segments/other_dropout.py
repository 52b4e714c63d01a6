"""expect: lab01.run_segments.gradient

The second run draws other numbers.
"""

from torch import nn
from torch.utils.checkpoint import checkpoint


def run_segments(layers, x, lengths):
    start, how = 0, {"use_reentrant": False, "preserve_rng_state": False}
    for length in lengths[:-1]:
        x = checkpoint(nn.Sequential(*layers[start : start + length]), x, **how)
        start += length
    return nn.Sequential(*layers[start:])(x)
