"""expect: lab06.zero_bubble.held

In every turn W comes before I.
"""


def zero_bubble(num_stages, num_micro_batches):
    rows = []
    for rank in range(num_stages):
        warm_up = min(num_micro_batches, num_stages - 1 - rank)
        row = [("F", i) for i in range(warm_up)]
        for i in range(num_micro_batches):
            if warm_up + i < num_micro_batches:
                row.append(("F", warm_up + i))
            if i > rank:
                row.append(("W", i - rank - 1))
            row.append(("I", i))
        row += [("W", i) for i in range(max(0, num_micro_batches - rank - 1), num_micro_batches)]
        rows.append(row)
    return rows
