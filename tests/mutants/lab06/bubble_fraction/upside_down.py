"""expect: lab06.bubble_fraction.values

Stages and micro-batches are swapped.
"""


def bubble_fraction(num_stages, num_micro_batches):
    return (num_micro_batches - 1) / (num_micro_batches + num_stages - 1)
