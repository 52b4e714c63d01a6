"""expect: lab06.schedule.stuck

GPipe in groups as large as a rank may hold: the groups of neighbours do not fit.
"""


def one_f_one_b(num_stages, num_micro_batches):
    rows = []
    for rank in range(num_stages):
        size = num_stages - rank
        row = []
        for start in range(0, num_micro_batches, size):
            group = range(start, min(start + size, num_micro_batches))
            row += [("F", i) for i in group] + [("B", i) for i in group]
        rows.append(row)
    return rows
