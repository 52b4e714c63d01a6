"""Each product by its M, K and N."""


def forward_flops(config, batch_size, seq_len):
    D, F, d = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv, rows = config.num_heads * d, config.num_kv_heads * d, batch_size * seq_len
    total = 0
    for inputs, outputs in ((D, q), (D, kv), (D, kv), (q, D), (D, F), (D, F), (F, D)):
        total += 2 * rows * inputs * outputs
    for m, k, n in ((seq_len, d, seq_len), (seq_len, seq_len, d)):
        total += 2 * m * k * n * batch_size * config.num_heads
    return config.num_layers * total + 2 * rows * D * config.vocab_size
