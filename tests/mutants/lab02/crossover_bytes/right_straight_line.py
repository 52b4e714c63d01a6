"""The difference is a straight line in S: two points give its zero."""


def difference_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    ring_s = 2 * (num_ranks - 1) * (alpha_s + beta_s_per_byte * payload_bytes / num_ranks)
    tree_rounds = 2 * (num_ranks - 1).bit_length()
    return ring_s - tree_rounds * (alpha_s + beta_s_per_byte * payload_bytes)


def crossover_bytes(num_ranks, alpha_s, beta_s_per_byte):
    at_0 = difference_s(0, num_ranks, alpha_s, beta_s_per_byte)
    at_1e9 = difference_s(1e9, num_ranks, alpha_s, beta_s_per_byte)
    return 1e9 * at_0 / (at_0 - at_1e9)
