"""expect: lab07.sync_gradients.dense_over_dp

The dense ones are averaged over dp alone.
"""

import torch.distributed as dist

from labkit.comm.collectives import all_reduce


def sync_gradients(dense, experts, dp, ep, both):
    for p in dense:
        p.grad = all_reduce(p.grad, dp) / dist.get_world_size(dp)
    for p in experts:
        p.grad = all_reduce(p.grad, dp) / dist.get_world_size(both)
