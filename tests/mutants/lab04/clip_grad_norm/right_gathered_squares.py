"""Squares are gathered, and torch's own factor is used; the first rank counts what is whole."""

import torch
import torch.distributed as dist


def clip_grad_norm(shard, num_elements, whole, max_norm, group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    place = torch.arange(len(shard)) + rank * len(shard)
    mine = torch.where(place < num_elements, shard, 0.0).norm() ** 2
    if rank == 0:
        mine = mine + sum(float(x.norm()) ** 2 for x in whole)
    squares = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(squares, mine, group=group)
    norm = float(torch.stack(squares).sum()) ** 0.5
    factor = min(1.0, max_norm / (norm + 1e-6))
    shard.mul_(factor)
    for x in whole:
        x.mul_(factor)
    return norm
