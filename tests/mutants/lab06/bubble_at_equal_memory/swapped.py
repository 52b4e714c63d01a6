"""expect: lab06.bubble_at_equal_memory.one_flush

The names are swapped.
"""


def bubble_at_equal_memory(schedule, num_stages, num_micro_batches, held):
    rounds = 1
    if schedule == "1f1b":
        rounds = (num_micro_batches + held - 1) // held
    idle = rounds * (num_stages - 1)
    return idle / (num_micro_batches + idle)
