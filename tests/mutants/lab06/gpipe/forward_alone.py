"""expect: lab06.schedule.missing

Nothing comes back.
"""


def gpipe(num_stages, num_micro_batches):
    numbers = range(num_micro_batches)
    row = [("F", i) for i in numbers]
    return [list(row) for _ in range(num_stages)]
