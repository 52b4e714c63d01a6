"""expect: lab07.sync_gradients.dense_local

The sum is made and thrown away.
"""

from labkit.comm.collectives import all_reduce


def sync_gradients(dense, experts, dp, ep, both):
    for p in dense:
        all_reduce(p.grad, both)
    for p in experts:
        all_reduce(p.grad, dp)
