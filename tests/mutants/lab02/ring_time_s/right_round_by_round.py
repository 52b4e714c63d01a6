"""One round after another."""


def ring_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    total_s = 0.0
    for _ in ("reduce-scatter", "all-gather"):
        for _ in range(1, num_ranks):
            total_s += alpha_s
            total_s += beta_s_per_byte * (payload_bytes / num_ranks)
    return total_s
