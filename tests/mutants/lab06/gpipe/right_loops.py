"""The same with loops."""


def gpipe(num_stages, num_micro_batches):
    rows = []
    for _ in range(num_stages):
        row = []
        for kind in ("F", "B"):
            for i in range(num_micro_batches):
                row.append((kind, i))
        rows.append(tuple(row))
    return rows
