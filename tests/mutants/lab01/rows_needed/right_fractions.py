"""In exact fractions."""

from fractions import Fraction
from math import ceil


def rows_needed(inputs, outputs, number_bytes, peak, bandwidth):
    byte_s, flop_s = Fraction(number_bytes, bandwidth), Fraction(2, peak)
    a_row = flop_s * inputs * outputs - byte_s * (inputs + outputs)
    weight = byte_s * inputs * outputs
    return ceil(weight / a_row) if a_row > 0 else None
