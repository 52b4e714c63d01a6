"""expect: lab06.bubble_at_equal_memory.one_round

A smaller round counts as a part of one.
"""


def bubble_at_equal_memory(schedule, num_stages, num_micro_batches, held):
    rounds = 1
    if schedule == "gpipe":
        rounds = max(1, num_micro_batches / held)
    idle = rounds * (num_stages - 1)
    return idle / (num_micro_batches + idle)
