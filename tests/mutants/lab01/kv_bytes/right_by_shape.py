"""The shape of K, twice a layer."""

from math import prod


def kv_bytes(config, batch_size, seq_len, number_bytes):
    shape = batch_size, config.num_kv_heads, seq_len, config.head_dim
    return float(prod(shape) * number_bytes * 2 * config.num_layers)
