"""expect: lab06.bubble_fraction.values

Filling and emptying count as a whole micro-batch each.
"""


def bubble_fraction(num_stages, num_micro_batches):
    return 2 * (num_stages - 1) / (num_micro_batches + 2 * (num_stages - 1))
