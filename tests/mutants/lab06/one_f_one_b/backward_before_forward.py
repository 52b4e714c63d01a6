"""expect: lab06.one_f_one_b.slow

In turn, but the backward comes before the forward.
"""


def one_f_one_b(num_stages, num_micro_batches):
    rows = []
    for rank in range(num_stages):
        warm_up = max(1, min(num_micro_batches, num_stages - 1 - rank))
        row = [("F", i) for i in range(warm_up)]
        for i in range(num_micro_batches):
            row.append(("B", i))
            if warm_up + i < num_micro_batches:
                row.append(("F", warm_up + i))
        rows.append(row)
    return rows
