"""expect: lab06.one_f_one_b.held

The number of first forwards depends on the micro-batches, not on the ranks.
"""


def one_f_one_b(num_stages, num_micro_batches):
    rows = []
    for rank in range(num_stages):
        warm_up = max(0, num_micro_batches - 1 - rank)
        row = [("F", i) for i in range(warm_up)]
        for i in range(num_micro_batches):
            if warm_up + i < num_micro_batches:
                row.append(("F", warm_up + i))
            row.append(("B", i))
        rows.append(row)
    return rows
