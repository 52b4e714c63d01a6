"""expect: lab07.kept.over

Each column of choices has counters of its own.
"""

import torch


def kept(indices, num_experts, capacity):
    mask = torch.zeros(indices.shape, dtype=torch.bool)
    for slot in range(indices.shape[1]):
        taken = [0] * num_experts
        for token in range(len(indices)):
            expert = int(indices[token, slot])
            mask[token, slot] = taken[expert] < capacity
            taken[expert] += 1
    return mask
