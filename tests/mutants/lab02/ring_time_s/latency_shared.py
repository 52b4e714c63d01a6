"""expect: lab02.ring_time_s.latency

Latency is divided by N like the bytes.
"""


def ring_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    rounds = 2 * (num_ranks - 1)
    return rounds / num_ranks * (alpha_s + beta_s_per_byte * payload_bytes)
