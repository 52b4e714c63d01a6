"""expect: lab02.ring_time_s.bytes

Eight bits a byte, where β is for bytes already.
"""


def ring_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    bits = 8 * payload_bytes
    return 2 * (num_ranks - 1) * (alpha_s + beta_s_per_byte * bits / num_ranks)
