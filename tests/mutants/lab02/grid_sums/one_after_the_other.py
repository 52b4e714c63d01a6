"""expect: lab02.grid_sums.all

The column's sum is made of the row's.
"""

import torch.distributed as dist


def grid_sums(x, row, column):
    total = x.clone()
    dist.all_reduce(total, group=row)
    over_row = total.clone()
    dist.all_reduce(total, group=column)
    return over_row, total
