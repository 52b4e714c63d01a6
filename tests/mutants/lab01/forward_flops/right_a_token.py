"""FLOPs of a token, times the tokens."""


def forward_flops(config, batch_size, seq_len):
    width = config.num_heads * config.head_dim
    heads = config.num_heads + config.num_kv_heads
    weights = 2 * config.hidden_size * config.head_dim * heads
    weights += 3 * config.hidden_size * config.intermediate_size
    layer = 2.0 * weights + 4 * seq_len * width
    token = config.num_layers * layer + 2 * config.hidden_size * config.vocab_size
    return token * batch_size * seq_len
