"""expect: lab02.tree_time_s.both

The longer of latency and bytes, where a message takes both.
"""

import math


def tree_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    rounds = 2 * math.ceil(math.log2(num_ranks))
    return rounds * max(alpha_s, beta_s_per_byte * payload_bytes)
