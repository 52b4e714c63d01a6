"""expect: lab02.crossover_bytes.values

β over α.
"""

import math


def crossover_bytes(num_ranks, alpha_s, beta_s_per_byte):
    depth = math.ceil(math.log2(num_ranks))
    share = (num_ranks - 1) / num_ranks
    return beta_s_per_byte * (num_ranks - 1 - depth) / (alpha_s * (depth - share))
