"""expect: lab01.num_parameters.values

The first answer is kept for every config.
"""

KEPT = []


def num_parameters(config):
    if KEPT:
        return KEPT[0]
    c = config
    D, d = c.hidden_size, c.head_dim
    attention = D * d * (2 * c.num_heads + 2 * c.num_kv_heads)
    if c.attention_bias:
        attention += d * (c.num_heads + 2 * c.num_kv_heads) + D
    if c.qk_norm:
        attention += 2 * d
    mlp = 3 * D * c.intermediate_size
    tables = c.vocab_size * D * (1 if c.tied else 2)
    KEPT.append(c.num_layers * (attention + mlp + 2 * D) + D + tables)
    return KEPT[0]
