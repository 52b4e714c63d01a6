"""expect: lab01.activation_bytes.tables

Cosines and sines are forgotten.
"""


def activation_bytes(config, batch_size, seq_len):
    c = config
    D, F, d, H, K = c.hidden_size, c.intermediate_size, c.head_dim, c.num_heads, c.num_kv_heads
    norms = 2 * (2 * D + 1)
    into_products = 2 * D
    attention = d * (H + 2 * K) + H + 2 * d * H
    mlp = 4 * F
    tables = 0
    tokens = batch_size * seq_len
    return 4 * (tokens * (norms + into_products + attention + mlp) + tables)
