"""Cross-entropy and argmax over split logits.

Promised: torch's cross_entropy, with its options, and its gradient on 1, 2 and 4 ranks, for any
number of words; the same on every rank to the last bit; no message that carries logits; float32
inside for bfloat16; padding never counts, whatever it holds (pitfall T4), and weights of a token's
loss are honoured (G4).
Oracle: torch's cross_entropy and argmax of the whole logits on one process, float64.
"""

import math

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from labkit.comm.split import Split
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.parallel.vocab_loss import vocab_parallel_argmax, vocab_parallel_cross_entropy

TOL = dict(rtol=0, atol=1e-12)
B, T = 3, 5


def whole_logits(num_words, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(B, T, num_words, generator=generator, dtype=torch.float64)
    logits[0] += 800.0  # exp overflows without the maximum
    return logits.to(dtype)


def some_targets(num_words, ignored):
    targets = torch.randint(0, num_words, (B, T), generator=torch.Generator().manual_seed(1))
    targets[0, 0], targets[0, 1] = 0, num_words - 1
    if ignored:
        targets[1, 2:], targets[2, 0] = -100, -100
    return targets


def own_part(group, full):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    split = Split(dim=full.dim() - 1, size=full.shape[-1], parts=size)
    own = split.cut(full, rank, size)
    own[..., split.own_size(rank, size) :] = 1e4 if rank % 2 else float("-inf")  # padding
    return own


def loss_and_grad(group, num_words, options, dtype):
    logits = own_part(group, whole_logits(num_words, dtype)).requires_grad_()
    before = logits.detach().clone()
    with CommLedger() as ledger:
        loss = vocab_parallel_cross_entropy(
            logits, some_targets(num_words, ignored=True), group, num_words=num_words, **options
        )
        upstream = torch.arange(1.0, loss.numel() + 1, dtype=loss.dtype).view_as(loss)
        loss.backward(upstream)
    untouched = torch.equal(logits, before)
    return loss, logits.grad, untouched, [(op.operation, op.payload_bytes) for op in ledger.ops]


def expected(num_words, options, dtype):
    logits = whole_logits(num_words, dtype).double().requires_grad_()
    targets = some_targets(num_words, ignored=True).flatten()
    loss = cross_entropy(logits.flatten(0, 1), targets, **options)
    loss = loss.view(B, T) if loss.dim() else loss
    loss.backward(torch.arange(1.0, loss.numel() + 1, dtype=loss.dtype).view_as(loss))
    return loss, logits.grad


OPTIONS = [
    {},
    {"reduction": "sum"},
    {"reduction": "none"},
    {"label_smoothing": 0.1},
    {"label_smoothing": 0.3, "reduction": "none"},
]


@pytest.mark.parametrize(
    ("world_size", "num_words", "options"),
    [(1, 11, OPTIONS[3]), (2, 11, OPTIONS[0]), (4, 3, OPTIONS[4]), (4, 259, OPTIONS[0])]
    + [(4, 11, options) for options in OPTIONS],
)
def test_torchs_loss_and_gradient(world_size, num_words, options):
    loss, grad = expected(num_words, options, torch.float64)
    ranks = run_ranks(loss_and_grad, world_size, num_words, options, torch.float64)
    for got, _, untouched, calls in ranks:
        torch.testing.assert_close(got, loss, **TOL)
        assert torch.equal(got, ranks[0][0])
        assert untouched
        numbers = 3 if "label_smoothing" in options else 2
        assert calls == [("all_reduce", 8 * B * T), ("all_reduce", numbers * 8 * B * T)]
    got = torch.cat([rank[1] for rank in ranks], -1)
    torch.testing.assert_close(got[..., :num_words], grad, **TOL)
    assert not got[..., num_words:].any(), "padding has a gradient"


def test_bfloat16_is_summed_in_float32():
    """Against float64 on the logits as rounded: float32's error, not bfloat16's 4e-3."""
    loss, grad = expected(11, {}, torch.bfloat16)
    for got, own, _, _ in run_ranks(loss_and_grad, 2, 11, {}, torch.bfloat16):
        assert got.dtype == torch.float32
        assert own.dtype == torch.bfloat16
        torch.testing.assert_close(got.double(), loss, rtol=1e-6, atol=0)
    assert grad.abs().max() > 0


def no_weights(group):
    logits = own_part(group, torch.zeros(2, 3, 11, dtype=torch.float64))
    targets = torch.tensor([[0, 5, 10], [1, 2, 9]])
    return vocab_parallel_cross_entropy(logits, targets, group, num_words=11)


def test_padding_does_not_join_the_softmax():
    """T4: ln 11 = 2.3979; with the twelfth column it would be ln 12 = 2.4849."""
    for loss in run_ranks(no_weights, 4):
        assert abs(loss.item() - math.log(11)) < 1e-12


def pick_words(group, logits):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    split = Split(dim=1, size=logits.shape[1], parts=size)
    own = split.cut(logits, rank, size)
    own[:, split.own_size(rank, size) :] = float("-inf")
    with CommLedger() as ledger:
        words = vocab_parallel_argmax(own, group)
    return words, [(op.operation, op.payload_bytes) for op in ledger.ops]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_argmax_over_ranks(world_size):
    """The largest of all ranks, the lowest of equals, and never a padded word."""
    logits = torch.randn(41, 11, generator=torch.Generator().manual_seed(0)) - 100.0
    logits[0] = -5.0
    logits[1, 3] = logits[1, 9] = 7.0
    logits[2, 10] = 7.0
    best = (logits == logits.amax(1, keepdim=True)).int().argmax(1)
    for words, calls in run_ranks(pick_words, world_size, logits):
        assert torch.equal(words, best)
        assert words[:3].tolist() == [0, 3, 10]
        assert calls == [("all_reduce", 41 * 4), ("all_reduce", 41 * 8)]


def refused(group, change):
    targets = some_targets(11, ignored=False)
    arguments = dict(num_words=11, reduction="mean", label_smoothing=0.0)
    if change == "all ignored":
        targets = torch.full_like(targets, -100)
    elif change == "target":
        targets[0, 0] = 11
    elif change == "shape":
        targets = targets[:, 1:]
    else:
        arguments |= change
    with CommLedger() as ledger:
        try:
            vocab_parallel_cross_entropy(
                own_part(group, whole_logits(11)), targets, group, **arguments
            )
        except ValueError as error:
            return str(error), ledger.count()
    return "", ledger.count()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("all ignored", '0 of 15 targets are scored: take reduction="sum"'),
        ("target", "to 11, and there are 11"),
        ("shape", "logits (3, 5, 4) for targets (3, 4): 11 words over tp=3 are 4 a rank"),
        ({"num_words": 13}, "13 words over tp=3 are 5 a rank"),
        ({"reduction": "max"}, "got 'max'"),
        ({"label_smoothing": 1.5}, "from 0 to 1, got 1.5"),
    ],
)
def test_what_is_refused_on_every_rank(change, told):
    for message, calls in run_ranks(refused, 3, change):
        assert told in message
        assert calls == 0


def nothing_scored(group):
    logits = own_part(group, whole_logits(11)).requires_grad_()
    targets = torch.full((B, T), -100)
    loss = vocab_parallel_cross_entropy(logits, targets, group, num_words=11, reduction="sum")
    loss.backward()
    return loss.item(), logits.grad


def test_a_sum_over_no_token_is_zero():
    for loss, grad in run_ranks(nothing_scored, 2):
        assert loss == 0.0
        assert not grad.any()
