"""expect: lab01.activation_bytes.values

A layer keeps its input.
"""


def activation_bytes(config, batch_size, seq_len):
    return 4 * batch_size * seq_len * config.hidden_size
