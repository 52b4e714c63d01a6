"""expect: lab06.schedule.missing

No rank does anything.
"""


def one_f_one_b(num_stages, num_micro_batches):
    rows = []
    for rank in range(num_stages):
        warm_up = min(num_micro_batches, num_stages - 1 - rank)
        row = [("F", i) for i in range(warm_up)]
        for i in range(num_micro_batches):
            if warm_up + i < num_micro_batches:
                row.append(("F", warm_up + i))
            row.append(("B", i))
        rows.append(row)
    return [[] for _ in rows]
