"""expect: lab06.schedule.too_early

Backwards come first.
"""


def gpipe(num_stages, num_micro_batches):
    numbers = range(num_micro_batches)
    row = [("B", i) for i in numbers] + [("F", i) for i in numbers]
    return [list(row) for _ in range(num_stages)]
