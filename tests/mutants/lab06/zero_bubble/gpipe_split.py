"""expect: lab06.zero_bubble.held

GPipe with backward in two parts.
"""


def zero_bubble(num_stages, num_micro_batches):
    numbers = range(num_micro_batches)
    row = [(kind, i) for kind in ("F", "I", "W") for i in numbers]
    return [list(row) for _ in range(num_stages)]
