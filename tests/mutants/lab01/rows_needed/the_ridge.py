"""expect: lab01.rows_needed.weight_alone

As many rows as the ridge has FLOPs a byte, which holds for a weight in 16 bits that moves alone.
"""

import math


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    return math.ceil(peak / bandwidth)
