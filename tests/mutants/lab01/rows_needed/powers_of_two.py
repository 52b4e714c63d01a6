"""expect: lab01.rows_needed.values

The next power of two.
"""

import math


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    ridge = peak / bandwidth
    gain = 2 * inputs * outputs - ridge * number_bytes * (inputs + outputs)
    if gain <= 0:
        return None
    rows = ridge * number_bytes * inputs * outputs / gain
    return 2 ** math.ceil(math.log2(rows))
