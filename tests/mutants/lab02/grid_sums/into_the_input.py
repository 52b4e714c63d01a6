"""expect: lab02.ring.input

The row is summed into x itself.
"""

import torch.distributed as dist


def grid_sums(x, row, column):
    over_column = x.clone()
    dist.all_reduce(x, group=row)
    dist.all_reduce(over_column, group=column)
    return x.clone(), over_column
