"""expect: lab02.tree_time_s.bytes

Eight bits a byte, where β is for bytes already.
"""

import math


def tree_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    rounds = 2 * math.ceil(math.log2(num_ranks))
    return rounds * (alpha_s + beta_s_per_byte * 8 * payload_bytes)
