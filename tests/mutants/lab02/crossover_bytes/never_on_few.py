"""expect: lab02.crossover_bytes.few

Up to three ranks the ring is said never to win.
"""

import math


def crossover_bytes(num_ranks, alpha_s, beta_s_per_byte):
    depth = math.ceil(math.log2(num_ranks))
    share = (num_ranks - 1) / num_ranks
    if num_ranks <= 3:
        return math.inf
    return alpha_s * (num_ranks - 1 - depth) / (beta_s_per_byte * (depth - share))
