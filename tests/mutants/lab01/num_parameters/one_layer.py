"""expect: lab01.num_parameters.layer

One layer.
"""


def num_parameters(config):
    c = config
    D, d = c.hidden_size, c.head_dim
    attention = D * d * (2 * c.num_heads + 2 * c.num_kv_heads)
    if c.attention_bias:
        attention += d * (c.num_heads + 2 * c.num_kv_heads) + D
    if c.qk_norm:
        attention += 2 * d
    mlp = 3 * D * c.intermediate_size
    return attention + mlp + 2 * D
