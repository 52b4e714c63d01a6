"""expect: lab06.schedule.twice

The last micro-batch comes back twice.
"""


def gpipe(num_stages, num_micro_batches):
    numbers = range(num_micro_batches)
    row = [("F", i) for i in numbers] + [("B", i) for i in numbers] + [("B", num_micro_batches - 1)]
    return [list(row) for _ in range(num_stages)]
