"""expect: lab07.kept.values

The last tokens get their places first.
"""

import torch


def kept(indices, num_experts, capacity):
    mask = torch.zeros(indices.shape, dtype=torch.bool)
    taken = [0] * num_experts
    for slot in range(indices.shape[1]):
        for token in reversed(range(len(indices))):
            expert = int(indices[token, slot])
            mask[token, slot] = taken[expert] < capacity
            taken[expert] += 1
    return mask
