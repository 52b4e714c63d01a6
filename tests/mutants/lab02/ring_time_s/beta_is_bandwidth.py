"""expect: run.raised

β is read as bytes a second.
"""


def ring_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    return 2 * (num_ranks - 1) * (alpha_s + payload_bytes / num_ranks / beta_s_per_byte)
