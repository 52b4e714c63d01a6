"""expect: lab06.bubble_at_equal_memory.one_flush

Neither schedule needs rounds.
"""


def bubble_at_equal_memory(schedule, num_stages, num_micro_batches, held):
    rounds = 1
    idle = rounds * (num_stages - 1)
    return idle / (num_micro_batches + idle)
