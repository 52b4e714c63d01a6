"""expect: lab06.bubble_at_equal_memory.one_round

The bubble of the first round.
"""


def bubble_at_equal_memory(schedule, num_stages, num_micro_batches, held):
    rounds = 1
    if schedule == "gpipe":
        rounds = (num_micro_batches + held - 1) // held
    idle = rounds * (num_stages - 1)
    if schedule == "gpipe":
        idle, num_micro_batches = num_stages - 1, min(held, num_micro_batches)
    return idle / (num_micro_batches + idle)
