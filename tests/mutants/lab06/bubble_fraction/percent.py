"""expect: lab06.bubble_fraction.percent

In percent.
"""


def bubble_fraction(num_stages, num_micro_batches):
    return 100 * (num_stages - 1) / (num_micro_batches + num_stages - 1)
