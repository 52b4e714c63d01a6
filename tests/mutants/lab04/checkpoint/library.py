"""expect: lab04.checkpoint.library

torch has it already.
"""

from torch.utils.checkpoint import checkpoint as of_torch


def checkpoint(layer, x):
    return of_torch(layer, x, use_reentrant=False)
