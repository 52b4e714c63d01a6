"""expect: lab07.kept.over

Nothing is dropped.
"""

import torch


def kept(indices, num_experts, capacity):
    return torch.ones(indices.shape, dtype=torch.bool)
