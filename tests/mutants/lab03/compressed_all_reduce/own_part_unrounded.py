"""expect: lab03.compressed.mean_values

A rank's own part goes into its mean unrounded.
"""

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_gather


def compressed_all_reduce(gradient, residual, group):
    wanted = gradient + residual
    scale = wanted.abs().max().reshape(1) / 127
    codes = torch.where(scale > 0, wanted / scale, 0).round().to(torch.int8)
    size = dist.get_world_size(group)
    everyones = all_gather(codes.reshape(-1), group).view(size, -1).float()
    mean = all_gather(scale, group) @ everyones / size
    mean = mean.view_as(gradient) + (wanted - scale * codes) / size
    return mean, wanted - scale * codes
