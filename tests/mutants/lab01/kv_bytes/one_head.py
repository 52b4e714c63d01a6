"""expect: lab01.kv_bytes.one_head

One head.
"""


def kv_bytes(config, batch_size, seq_len, number_bytes):
    c = config
    token = 2 * c.num_layers * c.head_dim
    return batch_size * seq_len * token * number_bytes
