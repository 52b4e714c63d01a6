"""expect: lab02.tree_time_s.bytes

The payload is cut as in a ring.
"""

import math


def tree_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    rounds = 2 * math.ceil(math.log2(num_ranks))
    return rounds * (alpha_s + beta_s_per_byte * payload_bytes / num_ranks)
