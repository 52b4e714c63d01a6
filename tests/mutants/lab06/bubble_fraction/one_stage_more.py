"""expect: lab06.bubble_fraction.one_more

One rank too many waits.
"""


def bubble_fraction(num_stages, num_micro_batches):
    return num_stages / (num_micro_batches + num_stages)
