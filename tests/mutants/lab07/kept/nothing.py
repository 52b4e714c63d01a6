"""expect: lab07.kept.room_left

Everything is dropped.
"""

import torch


def kept(indices, num_experts, capacity):
    return torch.zeros(indices.shape, dtype=torch.bool)
