"""expect: lab03.serve.waits

Workers are served in turn, whoever asks.
"""

import torch
import torch.distributed as dist

from labkit.parallel.parameter_server import LEAVE, PULL


def serve(weights, lr, staleness_bound, group):
    weights, staleness = weights.clone(), []
    workers = dist.get_process_group_ranks(group)[1:]
    while workers:
        for worker in list(workers):
            request = torch.empty(1, dtype=torch.int64)
            dist.recv(request, worker, group)
            if request == PULL:
                dist.send(weights, worker, group)
                dist.recv(request, worker, group)
            if request == LEAVE:
                workers.remove(worker)
                continue
            gradient = torch.empty_like(weights)
            dist.recv(gradient, worker, group)
            weights -= lr * gradient
            staleness.append(0)
    return weights, staleness
