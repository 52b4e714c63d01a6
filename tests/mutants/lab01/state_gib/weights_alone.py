"""expect: lab01.state_gib.part

Weights in 16 bits, and nothing else.
"""

import torch

from labkit.model.transformer import Transformer


def state_gib(config):
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return 2 * parameters / 2**30
