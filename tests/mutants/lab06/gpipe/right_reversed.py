"""Backward in the paper's order: the last micro-batch comes back first."""


def gpipe(num_stages, num_micro_batches):
    numbers = range(num_micro_batches)
    row = [("F", i) for i in numbers] + [("B", i) for i in reversed(numbers)]
    return [list(row) for _ in range(num_stages)]
