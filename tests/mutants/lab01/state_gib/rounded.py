"""expect: lab01.state_gib.values

Rounded to whole GiB.
"""

import torch

from labkit.model.transformer import Transformer


def state_gib(config):
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return round(16 * parameters / 2**30)
