"""All ranks in one order."""

import torch.distributed as dist


def grid_sums(x, row, column):
    over_row, over_column = x.clone(), x.clone()
    dist.all_reduce(over_row, group=row)
    dist.all_reduce(over_column, group=column)
    return over_row, over_column
