"""expect: lab06.bubble_fraction.working

The share in which a rank computes.
"""


def bubble_fraction(num_stages, num_micro_batches):
    return num_micro_batches / (num_micro_batches + num_stages - 1)
