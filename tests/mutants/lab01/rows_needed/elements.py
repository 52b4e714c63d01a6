"""expect: lab01.rows_needed.elements

A byte a number.
"""

import math


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    ridge = peak / bandwidth
    gain = 2 * inputs * outputs - ridge * (inputs + outputs)
    if gain <= 0:
        return None
    return math.ceil(ridge * inputs * outputs / gain)
