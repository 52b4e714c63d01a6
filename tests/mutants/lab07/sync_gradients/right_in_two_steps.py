"""The dense ones along dp, then along ep; everybody divides at once."""

import torch.distributed as dist


def sync_gradients(dense, experts, dp, ep, both):
    size = dist.get_world_size(dp) * dist.get_world_size(ep)
    for p in [*dense, *experts]:
        p.grad = p.grad / size
        dist.all_reduce(p.grad, group=dp)
    for p in dense:
        dist.all_reduce(p.grad, group=ep)
