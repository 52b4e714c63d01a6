"""expect: lab03.server.nobody_serves

The server's weights, and everybody's sum of gradients.
"""

import torch.distributed as dist


def server_step(weights, gradient, lr, group):
    total, new = gradient.clone(), weights.clone()
    dist.all_reduce(total, group=group)
    dist.broadcast(new, dist.get_global_rank(group, 0), group=group)
    return new - lr * total / dist.get_world_size(group)
