"""expect: lab01.run_segments.no_gradient

Nothing is kept, and nothing comes back.
"""

import torch
from torch import nn


def run_segments(layers, x, lengths):
    start = sum(lengths[:-1])
    with torch.no_grad():
        x = nn.Sequential(*layers[:start])(x)
    return nn.Sequential(*layers[start:])(x)
