"""expect: lab01.rows_needed.no_output

Results are not written.
"""

import math


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    ridge = peak / bandwidth
    gain = 2 * inputs * outputs - ridge * number_bytes * inputs
    if gain <= 0:
        return None
    return math.ceil(ridge * number_bytes * inputs * outputs / gain)
