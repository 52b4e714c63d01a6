"""expect: lab06.gpipe.mixed

1F1B, which is as fast.
"""


def gpipe(num_stages, num_micro_batches):
    rows = []
    for rank in range(num_stages):
        warm_up = min(num_micro_batches, num_stages - 1 - rank)
        row = [("F", i) for i in range(warm_up)]
        for i in range(num_micro_batches):
            if warm_up + i < num_micro_batches:
                row.append(("F", warm_up + i))
            row.append(("B", i))
        rows.append(row)
    return rows
