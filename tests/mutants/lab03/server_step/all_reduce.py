"""expect: lab03.server.nobody_serves

No server: every rank sums, and updates what it has.
"""

import torch.distributed as dist


def server_step(weights, gradient, lr, group):
    total = gradient.clone()
    dist.all_reduce(total, group=group)
    return weights - lr * total / dist.get_world_size(group)
