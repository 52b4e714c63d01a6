"""expect: lab01.state_gib.part

Adam has one moment.
"""

import torch

from labkit.model.transformer import Transformer


def state_gib(config):
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return 12 * parameters / 2**30
