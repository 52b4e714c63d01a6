"""expect: lab02.tree_time_s.uneven

Rounds are a fraction.
"""

import math


def tree_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    return 2 * math.log2(num_ranks) * (alpha_s + beta_s_per_byte * payload_bytes)
