"""The formula."""


def ring_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    return 2 * (num_ranks - 1) * (alpha_s + beta_s_per_byte * payload_bytes / num_ranks)
