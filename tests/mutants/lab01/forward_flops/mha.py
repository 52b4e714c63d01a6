"""expect: lab01.forward_flops.mha

K and V are as wide as Q.
"""


def forward_flops(config, batch_size, seq_len):
    c = config
    D, q, kv = c.hidden_size, c.num_heads * c.head_dim, c.num_heads * c.head_dim
    tokens = batch_size * seq_len
    layer = D * (2 * q + 2 * kv) + 3 * D * c.intermediate_size
    products = 2 * tokens * (c.num_layers * layer + D * c.vocab_size)
    scores = 2 * batch_size * c.num_heads * seq_len * seq_len * c.head_dim
    return products + c.num_layers * 2 * scores
