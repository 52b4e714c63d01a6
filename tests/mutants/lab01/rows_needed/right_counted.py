"""Counted up."""


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    if 2 * inputs * outputs * bandwidth <= number_bytes * (inputs + outputs) * peak:
        return None
    rows = 1
    while True:
        moved = number_bytes * (rows * inputs + inputs * outputs + rows * outputs)
        if 2 * rows * inputs * outputs * bandwidth >= moved * peak:
            return rows
        rows += 1
