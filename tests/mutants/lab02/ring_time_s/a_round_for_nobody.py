"""expect: lab02.ring_time_s.alone

At least one round, also where there is nobody to talk to.
"""


def ring_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    return 2 * max(1, num_ranks - 1) * (alpha_s + beta_s_per_byte * payload_bytes / num_ranks)
