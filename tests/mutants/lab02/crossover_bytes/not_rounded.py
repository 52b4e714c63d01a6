"""expect: lab02.crossover_bytes.values

Rounds of the tree are a fraction.
"""

import math


def crossover_bytes(num_ranks, alpha_s, beta_s_per_byte):
    depth, share = math.log2(num_ranks), (num_ranks - 1) / num_ranks
    return alpha_s * (num_ranks - 1 - depth) / (beta_s_per_byte * (depth - share))
