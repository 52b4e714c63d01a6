"""expect: lab03.compressed.residual_nan

The residual is computed in steps, where zeros have none.
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
    return mean.view_as(gradient), (wanted / scale - codes) * scale
