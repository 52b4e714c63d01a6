"""expect: run.mismatch

Each rank pads to its own longest message, and they do not fit.
"""

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_to_all


def suspect(x, indices, weights, experts, group):
    size, k, share = dist.get_world_size(group), indices.shape[1], len(experts)
    chosen = indices.flatten()
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=size * share)
    arriving = all_to_all(counts, group).view(size, share)
    there = counts.view(size, share).sum(1).tolist()
    here = arriving.sum(1).tolist()
    most = max(there)

    def sent(rows, from_sizes, to_sizes):
        parts = rows.split(from_sizes)
        rooms = [rows.new_zeros(most - len(part), rows.shape[1]) for part in parts]
        filled = [torch.cat(pair) for pair in zip(parts, rooms, strict=True)]
        blocks = all_to_all(torch.cat(filled), group).split(most)
        return torch.cat([block[:n] for block, n in zip(blocks, to_sizes, strict=True)])

    rows = sent(x[order // k], there, here)
    expert = torch.arange(share).repeat(size).repeat_interleave(arriving.flatten())
    by_expert = expert.argsort(stable=True)
    parts = rows[by_expert].split(arriving.sum(0).tolist())
    answers = torch.cat([f(part) for f, part in zip(experts, parts, strict=True)])
    returned = sent(answers[by_expert.argsort()], here, there)
    copies = returned[order.argsort()].unflatten(0, indices.shape)
    return (weights.unsqueeze(-1) * copies).sum(1)
