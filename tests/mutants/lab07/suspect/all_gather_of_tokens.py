"""expect: lab07.suspect.gathered

All tokens are gathered on all ranks.
"""

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_gather, all_to_all


def suspect(x, indices, weights, experts, group):
    rank, size, share = dist.get_rank(group), dist.get_world_size(group), len(experts)
    lengths = all_to_all(torch.full((size,), len(x)), group).tolist()
    most = max(lengths)

    def whole(tensor):
        room = tensor.new_full((most - len(x), tensor.shape[1]), -1)
        return torch.cat([tensor, room])

    every = all_gather(whole(x), group)
    chosen = whole(indices).repeat(size, 1)
    chosen = all_to_all(chosen, group)
    answers = torch.zeros(*chosen.shape, x.shape[1], dtype=x.dtype)
    for number, expert in enumerate(experts, rank * share):
        answers = answers + (chosen == number).unsqueeze(-1) * expert(every).unsqueeze(1)
    mine = all_to_all(answers, group).unflatten(0, (size, most)).sum(0)[: len(x)]
    return (weights.unsqueeze(-1) * mine).sum(1)
