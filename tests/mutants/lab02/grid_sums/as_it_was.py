"""expect: run.mismatch

The program of the clinic: neighbours start with different groups.
"""

import torch.distributed as dist


def grid_sums(x, row, column):
    """The sum of x over this rank's row of a grid, and the sum over its column."""
    over_row, over_column = x.clone(), x.clone()
    calls = [(over_row, row), (over_column, column)]
    if (dist.get_rank(row) + dist.get_rank(column)) % 2:
        calls.reverse()  # half of the ranks start with columns: all links are busy
    for tensor, group in calls:
        dist.all_reduce(tensor, group=group)
    return over_row, over_column
