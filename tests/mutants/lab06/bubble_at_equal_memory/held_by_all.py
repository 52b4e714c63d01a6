"""expect: lab06.bubble_at_equal_memory.values

The memory is shared out among the ranks.
"""


def bubble_at_equal_memory(schedule, num_stages, num_micro_batches, held):
    rounds = 1
    if schedule == "gpipe":
        rounds = -(-num_micro_batches // max(1, held // num_stages))
    idle = rounds * (num_stages - 1)
    return idle / (num_micro_batches + idle)
