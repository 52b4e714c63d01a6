"""expect: lab04.checkpoint.no_input_gradient

The layer runs without a graph, and nothing runs it again.
"""

import torch


def checkpoint(layer, x):
    with torch.no_grad():
        return layer(x)
