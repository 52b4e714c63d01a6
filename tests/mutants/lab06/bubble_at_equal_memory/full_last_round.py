"""expect: lab06.bubble_at_equal_memory.one_round

The last round counts as a full one.
"""


def bubble_at_equal_memory(schedule, num_stages, num_micro_batches, held):
    rounds = 1
    if schedule == "gpipe":
        rounds = (num_micro_batches + held - 1) // held
    idle = rounds * (num_stages - 1)
    work = rounds * held if rounds > 1 else num_micro_batches
    return idle / (work + idle)
