"""expect: lab01.rows_needed.none

A large number where none is enough.
"""

import math


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    ridge = peak / bandwidth
    gain = 2 * inputs * outputs - ridge * number_bytes * (inputs + outputs)
    if gain <= 0:
        return 10**9
    return math.ceil(ridge * number_bytes * inputs * outputs / gain)
