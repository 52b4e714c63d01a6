"""expect: lab03.serve.waits

Those who still wait are counted as if they computed.
"""

import torch
import torch.distributed as dist

from labkit.parallel.parameter_server import PULL, PUSH


def serve(weights, lr, staleness_bound, group):
    weights, staleness, waiting, computing, left = weights.clone(), [], [], {}, 0
    while left < dist.get_world_size(group) - 1:
        request = torch.empty(1, dtype=torch.int64)
        worker = dist.recv(request, group=group)
        pulled = computing.pop(worker, None)
        if request == PULL:
            waiting.append(worker)
        elif request == PUSH:
            gradient = torch.empty_like(weights)
            dist.recv(gradient, src=worker, group=group)
            weights -= lr * gradient
            staleness.append(len(staleness) - pulled)
        else:
            left += 1
        version = len(staleness)
        while waiting and (
            not computing
            or version + len(waiting) + len(computing) - min(computing.values()) <= staleness_bound
        ):
            computing[waiting[0]] = version
            dist.send(weights, dst=waiting.pop(0), group=group)
    return weights, staleness
