"""expect: lab01.state_gib.bytes

In MiB.
"""

import torch

from labkit.model.transformer import Transformer


def state_gib(config):
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return 16 * parameters / 2**20
