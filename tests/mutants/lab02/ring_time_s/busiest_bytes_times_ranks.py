"""expect: lab02.ring_time_s.bytes

Bytes of all ranks, as if one link carried them.
"""


def ring_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    rounds = 2 * (num_ranks - 1)
    return rounds * alpha_s + rounds * payload_bytes * beta_s_per_byte
