"""expect: lab01.rows_needed.form

Not rounded.
"""


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    ridge = peak / bandwidth
    gain = 2 * inputs * outputs - ridge * number_bytes * (inputs + outputs)
    if gain <= 0:
        return None
    return ridge * number_bytes * inputs * outputs / gain
