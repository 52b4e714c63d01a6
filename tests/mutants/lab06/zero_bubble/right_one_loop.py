"""One loop, which goes on for as long as W is delayed."""


def zero_bubble(num_stages, num_micro_batches):
    rows = []
    for rank in range(num_stages):
        first = min(num_micro_batches, num_stages - 1 - rank)
        row = [("F", i) for i in range(first)]
        for i in range(num_micro_batches + rank):
            if first + i < num_micro_batches:
                row.append(("F", first + i))
            if i < num_micro_batches:
                row.append(("I", i))
            if i >= rank:
                row.append(("W", i - rank))
        rows.append(row)
    return rows
