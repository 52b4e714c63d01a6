"""expect: lab01.state_gib.count_gigabytes

Counts K and V with all heads, and GB for GiB.
"""

from dataclasses import replace

import torch

from labkit.model.transformer import Transformer


def state_gib(config):
    with torch.device("meta"):
        model = Transformer(replace(config, num_kv_heads=config.num_heads))
    return 16 * sum(p.numel() for p in model.parameters()) / 1e9
