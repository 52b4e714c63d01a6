"""expect: lab02.ring_time_s.latency

Latency is paid once a half, not once a round.
"""


def ring_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    bytes_s = beta_s_per_byte * payload_bytes
    return 2 * alpha_s + 2 * (num_ranks - 1) / num_ranks * bytes_s
