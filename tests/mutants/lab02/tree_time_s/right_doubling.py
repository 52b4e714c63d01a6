"""Whoever has it tells one more, until all know."""


def tree_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    told, rounds = 1, 0
    while told < num_ranks:
        told, rounds = 2 * told, rounds + 1
    return 2 * rounds * (alpha_s + beta_s_per_byte * payload_bytes)
