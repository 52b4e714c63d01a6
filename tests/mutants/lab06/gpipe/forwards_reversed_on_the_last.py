"""expect: lab06.gpipe.slow

The last rank takes the forwards in the other order.
"""


def gpipe(num_stages, num_micro_batches):
    numbers = range(num_micro_batches)
    row = [("F", i) for i in numbers] + [("B", i) for i in numbers]
    last = [("F", i) for i in reversed(numbers)] + [("B", i) for i in numbers]
    return [list(row) for _ in range(num_stages - 1)] + [last]
