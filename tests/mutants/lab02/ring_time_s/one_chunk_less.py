"""expect: lab02.ring_time_s.bytes

N - 1 chunks, where there are N.
"""


def ring_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    chunk = payload_bytes / max(1, num_ranks - 1)
    return 2 * (num_ranks - 1) * (alpha_s + beta_s_per_byte * chunk)
