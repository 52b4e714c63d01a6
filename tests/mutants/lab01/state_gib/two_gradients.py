"""expect: lab01.state_gib.more

Gradients in 16 bits and in fp32.
"""

import torch

from labkit.model.transformer import Transformer


def state_gib(config):
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return 20 * parameters / 2**30
