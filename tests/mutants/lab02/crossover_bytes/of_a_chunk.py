"""expect: lab02.crossover_bytes.values

The length of a chunk, not of the payload.
"""

import math


def crossover_bytes(num_ranks, alpha_s, beta_s_per_byte):
    depth = math.ceil(math.log2(num_ranks))
    return (
        alpha_s * (num_ranks - 1 - depth) / (beta_s_per_byte * (num_ranks * depth - num_ranks + 1))
    )
