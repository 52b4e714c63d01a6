"""expect: lab01.kv_bytes.bits

Bits.
"""


def kv_bytes(config, batch_size, seq_len, number_bytes):
    c = config
    token = 2 * c.num_layers * c.num_kv_heads * c.head_dim
    return batch_size * seq_len * token * number_bytes * 8
