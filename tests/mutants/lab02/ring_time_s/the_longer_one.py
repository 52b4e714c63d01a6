"""expect: lab02.ring_time_s.both

The longer of latency and bytes, where a message takes both.
"""


def ring_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    chunk_s = beta_s_per_byte * payload_bytes / num_ranks
    return 2 * (num_ranks - 1) * max(alpha_s, chunk_s)
