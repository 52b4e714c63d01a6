"""BucketedDataParallel beside torch's DistributedDataParallel: same gradients, same bytes.

Promised: over five steps the gradients agree, a rank sends as many bytes in as many messages or
fewer, and what torch needs an option for (parameters that a rank does not use) works alike.
DDP orders its buckets anew in its second step, so messages are compared from the third on.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer, initialise, next_token_loss
from labkit.parallel.data import BucketedDataParallel

BUCKET_MIB = 1
STEPS = 5


def transformer():
    model = Transformer(PRESETS["nano"])
    initialise(model, torch.Generator().manual_seed(0))
    return model


def both(group):
    module = transformer()
    models = [
        BucketedDataParallel(copy.deepcopy(module), group, bucket_bytes=BUCKET_MIB * 2**20),
        DistributedDataParallel(module, bucket_cap_mb=BUCKET_MIB, process_group=group),
    ]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    generator = torch.Generator().manual_seed(dist.get_rank(group))
    found = []
    for _ in range(STEPS):
        words = torch.randint(0, 259, (2, 17), generator=generator)  # [B, T + 1]
        for model in models:
            with CommLedger() as ledger:
                next_token_loss(model(words[:, :-1]), words[:, 1:]).backward()
                if isinstance(model, BucketedDataParallel):
                    model.finish()
            found.append((ledger.count(), ledger.bytes_sent()))
        ours, theirs = ([p.grad for p in model.parameters()] for model in models)
        errors = [(a - b).abs().max() / b.abs().max() for a, b in zip(ours, theirs, strict=True)]
        found[-2:] = [(*found[-2:], max(errors).item())]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return found


@pytest.mark.parametrize("world_size", [2, 4])
def test_same_gradients_for_the_same_bytes(world_size):
    for steps in run_ranks(both, world_size):
        for step, ((our_count, our_bytes), (count, num_bytes), error) in enumerate(steps):
            # fp32 sums of at most 4 terms, in another order for a piece of each bucket.
            assert error < 1e-5
            if step >= 2:
                assert abs(our_bytes - num_bytes) <= 2 * (our_count + count), "rounding of a call"
                assert our_count <= count + 1


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.never = (nn.Linear(3, 2) for _ in range(3))

    def forward(self, x, both):
        return self.a(x) + self.b(x) if both else self.a(x)


def unused(group):
    torch.manual_seed(0)
    module, rank = Branches(), dist.get_rank(group)
    models = [
        BucketedDataParallel(copy.deepcopy(module), group),
        DistributedDataParallel(module, process_group=group, find_unused_parameters=True),
    ]
    for model in models:
        model(torch.full((4, 3), 1.0 + rank), rank == 0).square().sum().backward()
    models[0].finish()
    return [[p.grad for p in model.parameters()] for model in models]


def test_unused_parameters_without_an_option():
    for ours, theirs in run_ranks(unused, 2):
        assert [g is None for g in ours] == [g is None for g in theirs]
        for a, b in zip(ours, theirs, strict=True):
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
