"""expect: lab01.rows_needed.one_more

Strictly above the ridge.
"""

import math


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    ridge = peak / bandwidth
    gain = 2 * inputs * outputs - ridge * number_bytes * (inputs + outputs)
    if gain <= 0:
        return None
    return 1 + math.floor(ridge * number_bytes * inputs * outputs / gain)
