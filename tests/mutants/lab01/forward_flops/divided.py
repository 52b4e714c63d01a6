"""expect: lab01.forward_flops.divided

A head is hidden_size / num_heads wide.
"""


def forward_flops(config, batch_size, seq_len):
    c = config
    D, head_dim = c.hidden_size, c.hidden_size // c.num_heads
    q, kv = c.num_heads * head_dim, c.num_kv_heads * head_dim
    tokens = batch_size * seq_len
    layer = D * (2 * q + 2 * kv) + 3 * D * c.intermediate_size
    products = 2 * tokens * (c.num_layers * layer + D * c.vocab_size)
    scores = 2 * batch_size * c.num_heads * seq_len * seq_len * head_dim
    return products + c.num_layers * 2 * scores
