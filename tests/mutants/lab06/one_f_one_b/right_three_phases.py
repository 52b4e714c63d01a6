"""Three phases, one after the other."""


def one_f_one_b(num_stages, num_micro_batches):
    rows = []
    for rank in range(num_stages):
        first = min(num_micro_batches, num_stages - 1 - rank)
        steady = num_micro_batches - first
        row = [("F", i) for i in range(first)]
        for i in range(steady):
            row += [("F", first + i), ("B", i)]
        row += [("B", i) for i in range(steady, num_micro_batches)]
        rows.append(row)
    return rows
