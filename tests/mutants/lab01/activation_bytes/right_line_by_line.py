"""The table, line by line."""

from math import prod


def activation_bytes(config, batch_size, seq_len):
    B, T, D, F = batch_size, seq_len, config.hidden_size, config.intermediate_size
    H, K, d = config.num_heads, config.num_kv_heads, config.head_dim
    shapes = 6 * [(B, T, D)] + 2 * [(B, T, 1)] + 4 * [(B, T, F)]
    shapes += 3 * [(B, H, T, d)] + 2 * [(B, K, T, d)] + [(B, H, T)] + 2 * [(T, d // 2)]
    return 4 * sum(map(prod, shapes))
