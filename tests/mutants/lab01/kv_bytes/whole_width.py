"""expect: lab01.kv_bytes.whole_width

A key as wide as the model.
"""


def kv_bytes(config, batch_size, seq_len, number_bytes):
    c = config
    token = 2 * c.num_layers * c.hidden_size
    return batch_size * seq_len * token * number_bytes
