"""expect: lab02.crossover_bytes.values

In elements of four bytes.
"""

import math


def crossover_bytes(num_ranks, alpha_s, beta_s_per_byte):
    depth = math.ceil(math.log2(num_ranks))
    share = (num_ranks - 1) / num_ranks
    return alpha_s * (num_ranks - 1 - depth) / (4 * beta_s_per_byte * (depth - share))
