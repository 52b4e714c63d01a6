"""Rounds as the bits of the last rank's number."""


def tree_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    rounds = (num_ranks - 1).bit_length()
    return 2 * rounds * (alpha_s + beta_s_per_byte * payload_bytes)
