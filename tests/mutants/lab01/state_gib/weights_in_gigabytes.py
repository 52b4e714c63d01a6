"""expect: lab01.state_gib.part_gigabytes

Weights alone, and in GB.
"""

import torch

from labkit.model.transformer import Transformer


def state_gib(config):
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return 2 * parameters / 1e9
