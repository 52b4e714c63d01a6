"""expect: lab02.tree_time_s.alone

A tree of one has a level too.
"""

import math


def tree_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    return 2 * max(1, math.ceil(math.log2(num_ranks))) * (alpha_s + beta_s_per_byte * payload_bytes)
