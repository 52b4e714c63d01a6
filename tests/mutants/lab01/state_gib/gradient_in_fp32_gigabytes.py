"""expect: lab01.state_gib.more_gigabytes

Gradients in fp32, and GB for GiB.
"""

import torch

from labkit.model.transformer import Transformer


def state_gib(config):
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return 18 * parameters / 1e9
