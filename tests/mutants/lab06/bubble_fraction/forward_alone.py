"""expect: lab06.bubble_fraction.values

Backward's share of the bubble is not counted, its work is.
"""


def bubble_fraction(num_stages, num_micro_batches):
    return (num_stages - 1) / (3 * num_micro_batches + num_stages - 1)
