"""expect: lab01.forward_flops.all_parameters

Twice the parameters a token, and nothing else.
"""

import torch

from labkit.model.transformer import Transformer


def forward_flops(config, batch_size, seq_len):
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(config).parameters())
    return 2 * parameters * batch_size * seq_len
