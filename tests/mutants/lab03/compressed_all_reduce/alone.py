"""expect: lab03.compressed.bytes

Nothing is sent.
"""

import torch
import torch.distributed as dist


def compressed_all_reduce(gradient, residual, group):
    wanted = gradient + residual
    scale = wanted.abs().max().reshape(1) / 127
    codes = torch.where(scale > 0, wanted / scale, 0).round().to(torch.int8)
    dist.get_world_size(group)
    mean = (scale * codes).reshape(-1)
    return mean.view_as(gradient), wanted - scale * codes
