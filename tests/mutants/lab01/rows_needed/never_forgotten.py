"""expect: lab01.rows_needed.none

A negative number of rows where no number is enough.
"""

import math


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    ridge = peak / bandwidth
    gain = 2 * inputs * outputs - ridge * number_bytes * (inputs + outputs)
    gain = gain or 1
    return math.ceil(ridge * number_bytes * inputs * outputs / gain)
