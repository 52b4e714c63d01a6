"""expect: lab01.kv_bytes.no_batch

The batch is forgotten.
"""


def kv_bytes(config, batch_size, seq_len, number_bytes):
    c = config
    token = 2 * c.num_layers * c.num_kv_heads * c.head_dim
    return seq_len * token * number_bytes
