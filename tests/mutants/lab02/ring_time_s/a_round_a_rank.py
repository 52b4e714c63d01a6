"""expect: lab02.ring_time_s.latency

N rounds in each half.
"""


def ring_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    return 2 * num_ranks * (alpha_s + beta_s_per_byte * payload_bytes / num_ranks)
