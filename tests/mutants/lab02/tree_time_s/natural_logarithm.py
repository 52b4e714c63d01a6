"""expect: lab02.tree_time_s.uneven

The logarithm to the base e.
"""

import math


def tree_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    return 2 * math.ceil(math.log(num_ranks)) * (alpha_s + beta_s_per_byte * payload_bytes)
