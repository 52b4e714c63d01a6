"""expect: lab06.one_f_one_b.held

GPipe under another name.
"""


def one_f_one_b(num_stages, num_micro_batches):
    rows = []
    for _ in range(num_stages):
        warm_up = num_micro_batches
        row = [("F", i) for i in range(warm_up)]
        for i in range(num_micro_batches):
            if warm_up + i < num_micro_batches:
                row.append(("F", warm_up + i))
            row.append(("B", i))
        rows.append(row)
    return rows
