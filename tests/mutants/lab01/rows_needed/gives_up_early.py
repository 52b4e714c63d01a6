"""expect: lab01.rows_needed.never

Tries a thousand rows.
"""

import math


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    ridge = peak / bandwidth
    gain = 2 * inputs * outputs - ridge * number_bytes * (inputs + outputs)
    if gain <= 0:
        return None
    rows = math.ceil(ridge * number_bytes * inputs * outputs / gain)
    return rows if rows <= 1000 else None
