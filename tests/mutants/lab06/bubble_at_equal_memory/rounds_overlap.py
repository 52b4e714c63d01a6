"""expect: lab06.bubble_at_equal_memory.one_flush

The next round is said to fill the pipeline while the last one empties it.
"""


def bubble_at_equal_memory(schedule, num_stages, num_micro_batches, held):
    idle = num_stages - 1
    return idle / (num_micro_batches + idle)
