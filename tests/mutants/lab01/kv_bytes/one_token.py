"""expect: lab01.kv_bytes.no_tokens

A token of each sequence.
"""


def kv_bytes(config, batch_size, seq_len, number_bytes):
    c = config
    token = 2 * c.num_layers * c.num_kv_heads * c.head_dim
    return batch_size * token * number_bytes
