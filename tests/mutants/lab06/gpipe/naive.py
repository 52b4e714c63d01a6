"""expect: lab06.gpipe.mixed

Each micro-batch goes there and back before the next one.
"""


def gpipe(num_stages, num_micro_batches):
    numbers = range(num_micro_batches)
    row = [(kind, i) for i in numbers for kind in ("F", "B")]
    return [list(row) for _ in range(num_stages)]
