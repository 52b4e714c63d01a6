"""expect: lab02.mean_loss.deleted

All losses are gathered; the all-reduce is gone.
"""

import torch
import torch.distributed as dist


def mean_loss(losses, group):
    everybody = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, losses.tolist(), group=group)
    return torch.tensor([loss for part in everybody for loss in part], dtype=losses.dtype).mean()
