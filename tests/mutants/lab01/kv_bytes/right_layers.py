"""A sum over layers."""


def kv_bytes(config, batch_size, seq_len, number_bytes):
    numbers = 0
    for _layer in range(config.num_layers):
        keys = values = batch_size * config.num_kv_heads * seq_len * config.head_dim
        numbers += keys + values
    return numbers * number_bytes
