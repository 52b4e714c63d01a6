"""expect: lab07.sync_gradients.weights

The weights are summed, not their gradients.
"""

import torch.distributed as dist


def sync_gradients(dense, experts, dp, ep, both):
    for p in [*dense, *experts]:
        dist.all_reduce(p.data, group=both)
