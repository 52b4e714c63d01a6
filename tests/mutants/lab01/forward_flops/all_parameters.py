"""expect: lab01.forward_flops.all_parameters

Every parameter multiplies, embeddings and gains too.
"""

import torch

from labkit.model.transformer import Transformer


def forward_flops(config, batch_size, seq_len):
    c = config
    with torch.device("meta"):
        parameters = sum(p.numel() for p in Transformer(c).parameters())
    attention = 4 * batch_size * c.num_heads * seq_len**2 * c.head_dim
    return 2 * parameters * batch_size * seq_len + c.num_layers * attention
