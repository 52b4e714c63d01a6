"""One less the work over the step."""


def bubble_fraction(num_stages, num_micro_batches):
    return 1 - num_micro_batches / (num_micro_batches + num_stages - 1)
