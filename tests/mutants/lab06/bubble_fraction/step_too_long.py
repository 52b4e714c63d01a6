"""expect: lab06.bubble_fraction.one_less

The step is one micro-batch too long.
"""


def bubble_fraction(num_stages, num_micro_batches):
    return (num_stages - 1) / (num_micro_batches + num_stages)
