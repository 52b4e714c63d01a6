"""Attention's half, then the MLP's."""


def activation_bytes(config, batch_size, seq_len):
    def norm():
        return 3 * config.hidden_size + 1  # input, before the gain, behind it, 1/rms

    width = config.num_heads * config.head_dim
    attention = norm() + 3 * width + 2 * config.num_kv_heads * config.head_dim + config.num_heads
    mlp = norm() + 4 * config.intermediate_size
    positions = 2 * (config.head_dim // 2) * seq_len
    return 4.0 * (batch_size * seq_len * (attention + mlp) + positions)
