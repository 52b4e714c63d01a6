"""expect: lab02.tree_time_s.latency

Bytes alone.
"""

import math


def tree_time_s(payload_bytes, num_ranks, alpha_s, beta_s_per_byte):
    return 2 * math.ceil(math.log2(num_ranks)) * beta_s_per_byte * payload_bytes
