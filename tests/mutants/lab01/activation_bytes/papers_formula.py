"""expect: lab01.activation_bytes.values

The formula of another layer, in 16 bits and with dropout.
"""


def activation_bytes(config, batch_size, seq_len):
    c = config
    stream = seq_len * batch_size * c.hidden_size
    return stream * (34 + 5 * c.num_heads * seq_len / c.hidden_size)
