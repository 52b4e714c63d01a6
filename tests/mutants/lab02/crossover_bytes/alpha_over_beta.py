"""expect: lab02.crossover_bytes.values

Where one message's latency and bytes weigh the same.
"""


def crossover_bytes(num_ranks, alpha_s, beta_s_per_byte):
    return alpha_s / beta_s_per_byte
