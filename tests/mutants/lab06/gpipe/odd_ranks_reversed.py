"""expect: lab06.gpipe.slow

Every second rank takes the backwards in the other order.
"""


def gpipe(num_stages, num_micro_batches):
    numbers = range(num_micro_batches)
    rows = []
    for rank in range(num_stages):
        back = reversed(numbers) if rank % 2 else numbers
        rows.append([("F", i) for i in numbers] + [("B", i) for i in back])
    return rows
