"""expect: lab07.suspect.padded

Every message is as long as the longest of all ranks, filled up with zeros.
"""

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_reduce, all_to_all


def suspect(x, indices, weights, experts, group):
    """The answer [T, D] for each token of this rank; arguments as in moe."""
    size, k, share = dist.get_world_size(group), indices.shape[1], len(experts)
    chosen = indices.flatten()
    order = chosen.argsort(stable=True)
    counts = chosen.bincount(minlength=size * share)
    arriving = all_to_all(counts, group).view(size, share)
    there = counts.view(size, share).sum(1).tolist()
    here = arriving.sum(1).tolist()
    most = int(all_reduce(torch.tensor(max(there)), group, dist.ReduceOp.MAX))

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
