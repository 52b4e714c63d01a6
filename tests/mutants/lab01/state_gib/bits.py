"""expect: lab01.state_gib.values

Bits for bytes.
"""

import torch

from labkit.model.transformer import Transformer


def state_gib(config):
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return 128 * parameters / 2**30
