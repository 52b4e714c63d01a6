"""With ceil."""

from math import ceil


def bubble_at_equal_memory(schedule, num_stages, num_micro_batches, held):
    rounds = ceil(num_micro_batches / held) if schedule == "gpipe" else 1
    step = num_micro_batches + rounds * (num_stages - 1)
    return 1 - num_micro_batches / step
