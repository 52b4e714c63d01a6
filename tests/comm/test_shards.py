"""Shards of a flat buffer: the layout, the exchanges and the mark of a missing gradient.

Promised: every element of every parameter lies in one piece of one rank, in order; reduce-scatter
and all-gather are torch's, for half of gloo's bytes, and the sum is in the precision asked for; no
gradient is told from a zero gradient, whatever its sign.
Oracle: torch.tensor_split, torch's own collectives, one process.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.pieces import group_pieces
from labkit.comm.shards import (
    FlatLayout,
    finish_reduce_scatter,
    flat_gradient,
    set_gradients,
    start_all_gather,
    start_reduce_scatter,
)
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger

SHAPES = {"a": (3,), "b": (), "none": (0,), "c": (1, 2), "d": (7,)}


def layout(num_shards):
    return FlatLayout(
        names=tuple(SHAPES),
        shapes=tuple(torch.Size(shape) for shape in SHAPES.values()),
        num_shards=num_shards,
    )


@pytest.mark.parametrize("num_shards", [1, 2, 3, 4, 13, 20])
def test_every_element_is_in_one_piece(num_shards):
    it = layout(num_shards)
    flat = torch.arange(it.padded_numel, dtype=torch.float64)
    assert 13 <= it.padded_numel < 13 + num_shards
    pieces = [
        it.pieces(shard, rank) for rank, shard in enumerate(flat.view(num_shards, -1).unbind())
    ]
    for which, view in enumerate(it.views(flat)):
        own = [of_rank[which] for of_rank in pieces]
        assert torch.equal(torch.cat([p.parameter.detach() for p in own]), view.flatten())
        starts = [(p.start, p.start + p.parameter.numel()) for p in own if p.parameter.numel()]
        assert [low for low, _ in starts] == [0, *(high for _, high in starts)][: len(starts)]
        assert {(p.name, p.shape) for p in own} == {(it.names[which], it.shapes[which])}


def exchanged(group):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    generator = torch.Generator().manual_seed(rank)
    flat = torch.randn(3 * size, generator=generator, dtype=torch.float64)
    kept = flat.clone()
    with CommLedger() as ledger:
        shard = finish_reduce_scatter(start_reduce_scatter(flat, group), torch.float64)
        whole = torch.zeros_like(flat)
        whole.view(size, -1)[rank] = shard
        for work in start_all_gather(whole, group):
            work.wait()
    dist.all_reduce(kept, group=group)
    torch.testing.assert_close(whole, kept, rtol=0, atol=1e-14)
    return ledger.bytes_sent(), whole


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_exchanges(world_size):
    told = run_ranks(exchanged, world_size)
    for sent, whole in told:
        assert sent == 2 * (world_size - 1) * 3 * 8
        assert torch.equal(whole, told[0][1])


def small_in_bf16(group):
    """1 and three times 2^-9: in bf16 each sum would round back to 1."""
    value = 1.0 if dist.get_rank(group) == 0 else 2.0**-9
    flat = torch.full((4,), value, dtype=torch.bfloat16)
    return finish_reduce_scatter(start_reduce_scatter(flat, group), torch.float32)


def test_a_sum_of_bf16_is_not_rounded_on_its_way():
    for shard in run_ranks(small_in_bf16, 4):
        assert torch.equal(shard, torch.full((1,), 1 + 3 * 2.0**-9))


@pytest.mark.parametrize("num_shards", [1, 2, 4])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_no_gradient_is_not_a_zero_gradient(num_shards, zero):
    it = layout(num_shards)
    parameters = [nn.Parameter(torch.ones(shape)) for shape in it.shapes]
    for which in (0, 1, 3):  # d has none
        parameters[which].grad = torch.full_like(parameters[which], zero)
    flat = flat_gradient(it, parameters)
    assert torch.equal(flat, torch.zeros(it.padded_numel))
    for rank, shard in enumerate(flat.view(num_shards, -1).unbind()):
        pieces = it.pieces(torch.zeros_like(shard), rank)
        set_gradients(it, pieces, shard, rank)
        for piece in pieces:
            has = piece.parameter.numel() > 0 and piece.name != "d"
            assert (piece.parameter.grad is not None) == has, piece.name


def test_groups_are_the_same_on_every_rank():
    def options(name, shape):
        return {"weight_decay": 0.0} if len(shape) < 2 else {}

    for rank in range(4):
        pieces = layout(4).pieces(torch.zeros(4), rank)
        plain, decayed = group_pieces(pieces, options)
        assert (len(plain["params"]), plain["weight_decay"]) == (4, 0.0)
        assert len(decayed["params"]) == 1
        assert "weight_decay" not in decayed
