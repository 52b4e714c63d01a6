"""In units of time: F is 1, B is 2."""


def bubble_fraction(num_stages, num_micro_batches):
    work = 3 * num_micro_batches
    step = work + (num_stages - 1) + 2 * (num_stages - 1)
    return (step - work) / step
