"""expect: lab03.server.other_server

The last rank adds, the first one only keeps the weights.
"""

import torch.distributed as dist


def server_step(weights, gradient, lr, group):
    ranks = dist.get_process_group_ranks(group)
    total, new = gradient.clone(), weights.clone()
    dist.reduce(total, ranks[-1], group=group)
    dist.broadcast(total, ranks[-1], group=group)
    dist.broadcast(new, ranks[0], group=group)
    return new - lr * total / len(ranks)
