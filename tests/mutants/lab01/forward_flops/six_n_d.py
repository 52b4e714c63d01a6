"""expect: lab01.forward_flops.training

The rule of thumb of training.
"""

import torch

from labkit.model.transformer import Transformer


def forward_flops(config, batch_size, seq_len):
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return 6 * parameters * batch_size * seq_len
