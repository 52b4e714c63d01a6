"""expect: lab06.bubble_fraction.values

Divides without a remainder.
"""


def bubble_fraction(num_stages, num_micro_batches):
    return (num_stages - 1) // (num_micro_batches + num_stages - 1)
