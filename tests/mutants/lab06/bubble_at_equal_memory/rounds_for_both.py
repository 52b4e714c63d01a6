"""expect: lab06.bubble_at_equal_memory.in_rounds

1F1B is cut into rounds too.
"""


def bubble_at_equal_memory(schedule, num_stages, num_micro_batches, held):
    rounds = 1
    rounds = (num_micro_batches + held - 1) // held
    idle = rounds * (num_stages - 1)
    return idle / (num_micro_batches + idle)
