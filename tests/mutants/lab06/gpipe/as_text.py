"""expect: lab06.schedule.form

Actions are texts.
"""


def gpipe(num_stages, num_micro_batches):
    numbers = range(num_micro_batches)
    row = [f"F{i}" for i in numbers] + [f"B{i}" for i in numbers]
    return [list(row) for _ in range(num_stages)]
