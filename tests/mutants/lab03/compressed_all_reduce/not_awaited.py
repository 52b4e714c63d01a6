"""expect: lab03.compressed.unwaited

The all-gather of the scales is never awaited.
"""

import time

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_gather


def compressed_all_reduce(gradient, residual, group):
    wanted = gradient + residual
    scale = wanted.abs().max().reshape(1) / 127
    codes = torch.where(scale > 0, wanted / scale, 0).round().to(torch.int8)
    size = dist.get_world_size(group)
    everyones = all_gather(codes.reshape(-1), group).view(size, -1).float()
    scales = scale.new_empty(size)
    dist.all_gather_into_tensor(scales, scale, group=group, async_op=True)
    time.sleep(0.05)
    mean = scales @ everyones / size
    return mean.view_as(gradient), wanted - scale * codes
