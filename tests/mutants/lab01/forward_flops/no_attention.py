"""expect: lab01.forward_flops.no_attention

Products without weights are forgotten.
"""


def forward_flops(config, batch_size, seq_len):
    c = config
    D, q, kv = c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    tokens = batch_size * seq_len
    layer = D * (2 * q + 2 * kv) + 3 * D * c.intermediate_size
    products = 2 * tokens * (c.num_layers * layer + D * c.vocab_size)
    return products
