"""expect: run.mismatch

Everything goes to the world.
"""

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_gather


def compressed_all_reduce(gradient, residual, group):
    wanted = gradient + residual
    scale = wanted.abs().max().reshape(1) / 127
    codes = torch.where(scale > 0, wanted / scale, 0).round().to(torch.int8)
    size = dist.get_world_size()
    everyones = all_gather(codes.reshape(-1), dist.group.WORLD).view(size, -1).float()
    mean = all_gather(scale, dist.group.WORLD) @ everyones / size
    return mean.view_as(gradient), wanted - scale * codes
