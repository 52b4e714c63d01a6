"""Sequence parallelism: the two borders of a region, and what is replicated between regions.

Promised: the numbers of one process on 1, 2 and 4 ranks: outputs, the input's gradient, the
shards' gradients, and those of a norm's gain and of a bias added to own tokens (pitfall T8); the
gathered input is not kept; a sequence that does not divide is refused before anything is sent.
Oracle: linear layers on one process, float64.
"""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import linear

from labkit.comm.replicated import copy_all_to
from labkit.comm.split import Split
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.measure.memory import SavedActivations
from labkit.parallel.sequence import gather_in, scatter_out, scatter_sum, scatter_tokens

TOL = dict(rtol=0, atol=1e-12)  # sums of at most 60 terms of unit scale in float64
B, T, D, F = 3, 8, 4, 12
NAMES = ("x", "gain", "first", "first_bias", "second", "last", "last_bias")


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def values():
    shapes = [(B, T, D), (D,), (F, D), (F,), (F, D), (D, F), (D,)]
    numbered = enumerate(zip(NAMES, shapes, strict=True))
    return {name: normal(*shape, seed=i) for i, (name, shape) in numbered}


def cuts(size):
    split = {"x": (1, T), "first": (0, F), "first_bias": (0, F), "second": (0, F), "last": (1, F)}
    return {
        n: Split(dim=split[n][0], size=split[n][1], parts=size) if n in split else Split(size=D)
        for n in NAMES
    }


def whole_layer(v):
    """A gain (a norm's), two products of one input, their product back, a bias, the residual."""
    h = v["gain"] * v["x"]  # [B, T, D]
    hidden = linear(h, v["first"], v["first_bias"]).tanh() * linear(h, v["second"])  # [B, T, F]
    return v["x"] + linear(hidden, v["last"], v["last_bias"])  # [B, T, D]


def split_layer(v, group):
    (gain,) = copy_all_to([v["gain"]], group)
    h = gain * v["x"]  # [B, T/tp, D]
    layers = [(v["first"], v["first_bias"]), (v["second"], None)]
    first, second = gather_in(h, layers, group)  # [B, T, F/tp]
    return v["x"] + scatter_out(linear(first.tanh() * second, v["last"]), v["last_bias"], group)


def against_whole(group, needed):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    whole = {n: x.requires_grad_(n in needed) for n, x in values().items()}
    mine = {
        n: cuts(size)[n].cut(x, rank, size).requires_grad_(n in needed) for n, x in whole.items()
    }
    upstream, tokens = normal(B, T, D, seed=9), cuts(size)["x"]
    y = whole_layer(whole)
    y.backward(upstream)
    with CommLedger() as forward:
        z = split_layer(mine, group)
    grad = tokens.cut(upstream, rank, size)
    with CommLedger() as backward:
        z.backward(grad)
    assert torch.equal(grad, tokens.cut(upstream, rank, size)), "the incoming gradient is changed"
    torch.testing.assert_close(z, tokens.cut(y, rank, size), **TOL)
    for name in NAMES:
        if name in needed:
            expected = cuts(size)[name].cut(whole[name].grad, rank, size)
            torch.testing.assert_close(mine[name].grad, expected, **TOL, msg=name)
        else:
            assert mine[name].grad is None
    return [
        (each.count("all_gather"), each.count("all_reduce"), each.count("send"), each.bytes_sent())
        for each in (forward, backward)
    ]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_numbers_of_one_process(world_size):
    share = (world_size - 1) / world_size * B * T * D * 8  # bytes at a border
    small = 2 * (world_size - 1) / world_size * D * 8  # of a gain, or a bias
    hops = world_size - 1
    for forward, backward in run_ranks(against_whole, world_size, NAMES):
        assert forward == (1, 0, hops, 2 * share)
        # The exit's gather; then the input again, and the sum, each round the ring.
        assert backward == (1, 2, 2 * hops, 3 * share + 2 * small)


@pytest.mark.parametrize(
    "needed", [("x",), ("first",), ("gain",), ("last", "last_bias"), ("first_bias", "second")]
)
def test_what_is_frozen_gets_no_gradient(needed):
    run_ranks(against_whole, 2, needed)


def saved_bytes(group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = {n: cuts(size)[n].cut(x, rank, size).requires_grad_() for n, x in values().items()}
    with SavedActivations() as saved:
        gather_in(mine["x"] * 1.0, [(mine["first"], mine["first_bias"])], group)
    return {each.shape for each in saved.saved}


def test_only_the_own_tokens_are_kept():
    assert run_ranks(saved_bytes, 2) == [{(B, T // 2, D), (F // 2, D)}] * 2


def average_instead(group):
    """The fault of T8: the gain's gradient averaged, and not summed."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    mine = {n: cuts(size)[n].cut(x, rank, size).requires_grad_() for n, x in values().items()}
    split_layer(mine, group).backward(cuts(size)["x"].cut(normal(B, T, D, seed=9), rank, size))
    return mine["gain"].grad, mine["gain"].grad / size


def test_the_tolerance_would_catch_an_average():
    summed, averaged = run_ranks(average_instead, 2)[0]
    assert (summed - averaged).abs().max() > 100 * TOL["atol"]


def scatter(group):
    x = normal(B, T, D).requires_grad_()
    before = x.detach().clone()
    y = scatter_tokens(x, group)
    y.backward(torch.ones_like(y))
    z = scatter_sum(x.detach(), group)
    z.zero_()
    return y, x.grad, torch.equal(x, before)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_own_tokens_of_a_replicated_tensor(world_size):
    ranks = run_ranks(scatter, world_size)
    assert torch.equal(torch.cat([y for y, _, _ in ranks], 1), normal(B, T, D))
    for _, grad, untouched in ranks:
        assert bool((grad == 1.0).all())
        assert untouched, "the sum shares memory with its input"


def refused(group, fn):
    with CommLedger() as ledger:
        try:
            fn(normal(B, 5, D), group)
        except ValueError as error:
            return str(error), ledger.count()
    return "", ledger.count()


@pytest.mark.parametrize("fn", [scatter_sum, scatter_tokens, lambda x, g: scatter_out(x, None, g)])
def test_five_tokens_over_two_ranks_are_refused(fn):
    for message, calls in run_ranks(refused, 2, fn):
        assert "5 tokens over tp=2: pad the sequence to a multiple of 2" in message
        assert calls == 0
