"""expect: lab01.rows_needed.values

Two bytes a number, whatever is asked.
"""

import math


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    ridge = peak / bandwidth
    gain = 2 * inputs * outputs - ridge * 2 * (inputs + outputs)
    if gain <= 0:
        return None
    return math.ceil(ridge * 2 * inputs * outputs / gain)
