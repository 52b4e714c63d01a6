"""expect: lab03.compressed.summed

An all-reduce adds up int8 codes, which turn over.
"""

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_gather


def compressed_all_reduce(gradient, residual, group):
    wanted = gradient + residual
    scale = wanted.abs().max().reshape(1) / 127
    codes = torch.where(scale > 0, wanted / scale, 0).round().to(torch.int8)
    size = dist.get_world_size(group)
    total = codes.reshape(-1).clone()
    dist.all_reduce(total, group=group)
    mean = all_gather(scale, group).mean() * total / size
    return mean.view_as(gradient), wanted - scale * codes
