"""expect: lab01.rows_needed.values

Multiplications without additions.
"""

import math


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    ridge = peak / bandwidth
    gain = inputs * outputs - ridge * number_bytes * (inputs + outputs)
    if gain <= 0:
        return None
    return math.ceil(ridge * number_bytes * inputs * outputs / gain)
