"""expect: lab02.grid_sums.alone

The second sum is dropped: what is left cannot hang.
"""

import torch.distributed as dist


def grid_sums(x, row, column):
    over_row, over_column = x.clone(), x.clone()
    dist.all_reduce(over_row, group=row)
    return over_row, over_column
