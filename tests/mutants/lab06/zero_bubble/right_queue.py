"""Gradients of the inputs wait in a queue for their W."""


def zero_bubble(num_stages, num_micro_batches):
    rows = []
    for rank in range(num_stages):
        ahead = min(num_micro_batches, num_stages - 1 - rank)
        row, waiting = [("F", i) for i in range(ahead)], []
        for i in range(num_micro_batches):
            row += [("F", ahead + i)] if ahead + i < num_micro_batches else []
            row.append(("I", i))
            waiting.append(("W", i))
            if len(waiting) > rank:
                row.append(waiting.pop(0))
        rows.append(row + waiting)
    return rows
