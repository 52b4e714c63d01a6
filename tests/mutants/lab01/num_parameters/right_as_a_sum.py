"""One term after the other, as a float."""


def num_parameters(config):
    total = float(config.vocab_size * config.hidden_size)
    if not config.tied:
        total += config.vocab_size * config.hidden_size
    total += config.hidden_size
    for _ in range(config.num_layers):
        total += 2 * config.hidden_size
        total += 3 * config.hidden_size * config.intermediate_size
        for heads in (config.num_heads, config.num_kv_heads, config.num_kv_heads):
            width = heads * config.head_dim
            total += config.hidden_size * width + width * config.attention_bias
        total += config.num_heads * config.head_dim * config.hidden_size
        total += config.hidden_size if config.attention_bias else 0
        total += 2 * config.head_dim if config.qk_norm else 0
    return total
