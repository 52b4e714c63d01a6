"""Tensor parallelism beside torch's DTensor: same losses, same gradients.

Promised: over five steps of SGD our losses and gradients agree with those of parallelize_module on
the same model, with and without sequence parallelism. Without it ours sends fewer messages and
fewer bytes, since the logits stay split.
"""

import pytest
import torch
import torch.distributed as dist

from labkit.bench.tensor import Peer, dtensor_parallel
from labkit.compose.tensor_parallel import tensor_parallel
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.config import ModelConfig
from labkit.model.transformer import initialise, next_token_loss

STEPS, WORDS = 5, 259
CONFIG = ModelConfig(
    num_layers=2,
    hidden_size=32,
    intermediate_size=24,
    num_heads=8,
    num_kv_heads=4,
    head_dim=4,
    vocab_size=WORDS,
    max_seq_len=16,
)


def ten_times_initialised():
    model = Peer(CONFIG).double()
    initialise(model, torch.Generator().manual_seed(0))
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.mul_(10.0)  # std 0.2: attention and softmax are far from uniform
    return model


def both(group, sequence):
    """Losses of five steps, the largest error of a gradient, and what a step sends."""
    ours = tensor_parallel(ten_times_initialised(), group, sequence=sequence)
    size = dist.get_world_size(group)
    theirs = dtensor_parallel(ten_times_initialised(), size, sequence=sequence)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, theirs)]
    generator = torch.Generator().manual_seed(0)
    losses, errors, sent = [], [], []
    for _ in range(STEPS):
        words = torch.randint(0, WORDS, (2, 9), generator=generator)  # [B, T + 1]
        x, y = words[:, :-1], words[:, 1:]
        for loss in (lambda: ours.loss(x, y), lambda: next_token_loss(theirs(x), y)):  # noqa: B023
            with CommLedger() as ledger:
                losses.append(loss())
                losses[-1].backward()
            sent.append((ledger.count(), ledger.bytes_sent()))
        errors += compare_gradients(ours, theirs, dist.get_rank(group), size)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return losses, max(errors), sent[-2:]


def compare_gradients(ours, theirs, rank, size):
    for name, cut in ours.layout().items():
        grad = theirs.get_parameter(name).grad
        whole = grad.full_tensor() if hasattr(grad, "full_tensor") else grad
        error = ours.get_parameter(name).grad - cut.cut(whole, rank, size)
        yield error.abs().max().item()


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("world_size", [2, 4])
def test_same_numbers_as_dtensor(world_size, sequence):
    for losses, error, (ours, theirs) in run_ranks(both, world_size, sequence):
        torch.testing.assert_close(losses[::2], losses[1::2], rtol=0, atol=1e-12)
        assert error < 1e-12
        if not sequence:
            assert ours[0] < theirs[0]
            assert ours[1] < theirs[1]
