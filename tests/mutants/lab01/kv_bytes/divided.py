"""expect: lab01.kv_bytes.divided

A head is hidden_size / num_heads wide.
"""


def kv_bytes(config, batch_size, seq_len, number_bytes):
    c = config
    token = 2 * c.num_layers * c.num_kv_heads * (c.hidden_size // c.num_heads)
    return batch_size * seq_len * token * number_bytes
