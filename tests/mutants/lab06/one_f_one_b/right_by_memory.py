"""A rank runs a forward whenever it may hold one more."""


def one_f_one_b(num_stages, num_micro_batches):
    rows = []
    for rank in range(num_stages):
        row, forwards, backwards = [], 0, 0
        while backwards < num_micro_batches:
            may_hold = forwards - backwards < num_stages - rank
            if may_hold and forwards < num_micro_batches:
                row.append(("F", forwards))
                forwards += 1
            else:
                row.append(("B", backwards))
                backwards += 1
        rows.append(row)
    return rows
