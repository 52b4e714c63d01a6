"""expect: lab02.tree_time_s.latency

One round for every other rank.
"""


def tree_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    return 2 * (num_ranks - 1) * (alpha_s + beta_s_per_byte * payload_bytes)
