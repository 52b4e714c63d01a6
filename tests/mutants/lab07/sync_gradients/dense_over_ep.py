"""expect: lab07.sync_gradients.dense_over_ep

The dense ones are averaged over ep alone.
"""

import torch.distributed as dist

from labkit.comm.collectives import all_reduce


def sync_gradients(dense, experts, dp, ep, both):
    for p in dense:
        p.grad = all_reduce(p.grad, ep) / dist.get_world_size(ep)
    for p in experts:
        p.grad = all_reduce(p.grad, dp) / dist.get_world_size(both)
