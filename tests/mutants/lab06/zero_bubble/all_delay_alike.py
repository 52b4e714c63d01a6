"""expect: lab06.zero_bubble.held

Every rank delays W as the last one may.
"""


def zero_bubble(num_stages, num_micro_batches):
    rows = []
    for rank in range(num_stages):
        warm_up = min(num_micro_batches, num_stages - 1 - rank)
        row = [("F", i) for i in range(warm_up)]
        for i in range(num_micro_batches):
            if warm_up + i < num_micro_batches:
                row.append(("F", warm_up + i))
            row.append(("I", i))
            if i >= num_stages - 1:
                row.append(("W", i - num_stages + 1))
        row += [
            ("W", i) for i in range(max(0, num_micro_batches - num_stages + 1), num_micro_batches)
        ]
        rows.append(row)
    return rows
