"""expect: lab06.bubble_fraction.ideal

Over the ideal time, not over the step.
"""


def bubble_fraction(num_stages, num_micro_batches):
    return (num_stages - 1) / num_micro_batches
