"""Every matrix as a pair of numbers."""


def num_parameters(config):
    D, F, d = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_heads * d, config.num_kv_heads * d
    shapes = [(D, q), (D, kv), (D, kv), (q, D), (D, F), (D, F), (F, D)]
    layer = sum(rows * columns for rows, columns in shapes) + D + D
    layer += (q + kv + kv + D) * config.attention_bias + 2 * d * config.qk_norm
    table = config.vocab_size * D
    return table + config.num_layers * layer + D + table * (not config.tied)
