"""expect: lab06.one_f_one_b.slow

What was run last comes back first, on every rank by itself.
"""


def one_f_one_b(num_stages, num_micro_batches):
    rows = []
    for rank in range(num_stages):
        warm_up = min(num_micro_batches, num_stages - 1 - rank)
        row, stack = [("F", i) for i in range(warm_up)], list(range(warm_up))
        for i in range(num_micro_batches):
            if warm_up + i < num_micro_batches:
                row.append(("F", warm_up + i))
                stack.append(warm_up + i)
            row.append(("B", stack.pop()))
        rows.append(row)
    return rows
