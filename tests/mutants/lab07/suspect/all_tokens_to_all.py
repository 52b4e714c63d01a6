"""expect: lab07.suspect.bytes

Every token goes to every rank, whoever was chosen.
"""

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_to_all


def suspect(x, indices, weights, experts, group):
    rank, size, share = dist.get_rank(group), dist.get_world_size(group), len(experts)
    lengths = all_to_all(torch.full((size,), len(x)), group).tolist()
    spread = [len(x)] * size
    every = all_to_all(x.repeat(size, 1), group, spread, lengths)
    chosen = all_to_all(indices.repeat(size, 1), group, spread, lengths)
    answers = torch.zeros(*chosen.shape, x.shape[1], dtype=x.dtype)
    for number, expert in enumerate(experts, rank * share):
        here = (chosen == number).unsqueeze(-1)
        answers = answers + here * expert(every).unsqueeze(1)
    back = all_to_all(answers, group, lengths, spread).unflatten(0, (size, len(x)))
    return (weights.unsqueeze(-1) * back.sum(0)).sum(1)
