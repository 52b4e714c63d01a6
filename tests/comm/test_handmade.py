"""Handmade collectives against the sum and the concatenation on one process.

Promised: any world size, any length (also 0, shorter than the world, not divisible), any strides
and dtypes; inputs untouched and not shared; the same bits on every rank; bytes and messages as the
module's table says, to the byte. Whole numbers are exact. Floats are compared with float64 within N
roundings.
"""

from math import ceil, log2

import pytest
import torch
import torch.distributed as dist

from labkit.comm import handmade
from labkit.comm.mesh import Mesh
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger

LENGTHS = [0, 1, 2, 3, 5, 7, 1000]
ALL_REDUCES = [handmade.naive_all_reduce, handmade.ring_all_reduce, handmade.tree_all_reduce]


def numbers(rank, length, dtype=torch.float32):
    g = torch.Generator().manual_seed(rank)
    return (torch.randn(length, generator=g, dtype=torch.float64) * 100).to(dtype)


def inside_a_larger_buffer(x):
    """The same values as every third element of a buffer, from the second on."""
    base = torch.full((3 * x.numel() + 2,), -1, dtype=x.dtype)
    return base[1 : 3 * x.numel() + 1 : 3].copy_(x)


def all_lengths(group, dtype):
    results = []
    for length in LENGTHS:
        x = inside_a_larger_buffer(numbers(group.rank(), length, dtype))
        sums = [f(x, group) for f in ALL_REDUCES]
        pieces = handmade.ring_reduce_scatter(x, group), handmade.ring_all_gather(x, group)
        assert torch.equal(x, numbers(group.rank(), length, dtype)), "the input was written to"
        results.append((sums, *pieces))
    return results


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_whole_numbers_are_exact_for_every_length(world):
    ranks = run_ranks(all_lengths, world, torch.int64)
    for i, length in enumerate(LENGTHS):
        xs = [numbers(rank, length, torch.int64) for rank in range(world)]
        for rank, results in enumerate(ranks):
            sums, chunk, gathered = results[i]
            assert all(torch.equal(total, sum(xs)) for total in sums), length
            assert torch.equal(chunk, sum(xs).tensor_split(world)[rank]), length
            assert torch.equal(gathered, torch.cat(xs)), length


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("world", [3, 4])
def test_floats_have_the_same_bits_on_every_rank(world, dtype):
    ranks = run_ranks(all_lengths, world, dtype)
    for i, length in enumerate(LENGTHS):
        xs = torch.stack([numbers(rank, length, dtype) for rank in range(world)]).double()
        # Each of the N-1 additions rounds once, by half an eps of at most the sum of magnitudes.
        room = (world - 1) * torch.finfo(dtype).eps / 2 * xs.abs().sum(0) * (1 + 2**-6)
        for results in ranks:
            for total, of_rank_0 in zip(results[i][0], ranks[0][i][0], strict=True):
                assert torch.equal(total, of_rank_0)
                assert ((total.double() - xs.sum(0)).abs() <= room).all()


def shaped(group):
    x = torch.arange(12).view(3, 4) * (group.rank() + 1)
    views = [x, x.T, x[:, 1:3], x[1], x[1, 2], x[:, None, 0:0]]
    sums = [[f(view, group) for f in ALL_REDUCES] for view in views]
    gathered = [handmade.ring_all_gather(view, group) for view in views]
    return views, sums, gathered


def test_shapes_are_kept():
    ranks = run_ranks(shaped, 2)
    for views, sums, gathered in ranks:
        for i, view in enumerate(views):
            both = [ranks[rank][0][i] for rank in range(2)]
            assert view.dim() == both[0].dim()
            assert all(torch.equal(total, both[0] + both[1]) for total in sums[i])
            assert torch.equal(gathered[i], torch.cat([torch.atleast_1d(x) for x in both]))


def beside_torch(group):
    world = group.size()
    x = numbers(group.rank(), 60, torch.int64).view(12, 5)
    scattered, gathered, summed = x.new_empty(60 // world), x.new_empty(12 * world, 5), x.clone()
    dist.reduce_scatter(scattered, list(x.view(-1).chunk(world)), group=group)
    dist.all_gather(list(gathered.chunk(world)), x, group=group)
    dist.all_reduce(summed, group=group)
    return (
        torch.equal(handmade.ring_reduce_scatter(x, group), scattered),
        torch.equal(handmade.ring_all_gather(x, group), gathered),
        torch.equal(handmade.ring_all_reduce(x, group), summed),
    )


@pytest.mark.parametrize("world", [2, 4])
def test_equals_the_librarys_collectives(world):
    assert run_ranks(beside_torch, world) == [(True, True, True)] * world


def alone(group):
    x = torch.ones(4, requires_grad=True)
    functions = [
        *ALL_REDUCES,
        handmade.ring_reduce_scatter,
        handmade.ring_all_gather,
        handmade.tree_broadcast,
        handmade.tree_reduce,
    ]
    results = [f(x, group) for f in functions]
    results.append(handmade.hierarchical_all_reduce(x, group, group))
    with CommLedger() as ledger:
        handmade.ring_all_reduce(x, group)
    shared = any(result.data_ptr() == x.data_ptr() for result in results)
    return shared, any(result.requires_grad for result in results), ledger.count()


def test_a_group_of_one_gets_new_memory_and_sends_nothing():
    assert run_ranks(alone, 1) == [(False, False, 0)]


def counted(group):
    """Bytes sent and messages of each function, on 4-byte elements."""
    x = torch.ones(10, dtype=torch.float32)
    told = {}
    for f in (
        *ALL_REDUCES,
        handmade.ring_reduce_scatter,
        handmade.ring_all_gather,
        handmade.tree_broadcast,
        handmade.tree_reduce,
    ):
        with CommLedger() as ledger:
            f(x, group)
        told[f.__name__] = ledger.bytes_sent(), ledger.count("send"), ledger.count("recv")
        assert ledger.count() == sum(told[f.__name__][1:]), "send and recv only"
    return told


@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_bytes_and_rounds_are_those_of_the_table(world):
    ranks = run_ranks(counted, world)
    chunk_bytes = [4 * chunk.numel() for chunk in torch.ones(10).tensor_split(world)]
    rounds = ceil(log2(world))
    for rank, told in enumerate(ranks):
        own, following = chunk_bytes[rank], chunk_bytes[(rank + 1) % world]
        assert told["ring_all_reduce"] == (80 - own - following, 2 * (world - 1), 2 * (world - 1))
        assert told["ring_reduce_scatter"] == (40 - own, world - 1, world - 1)
        assert told["ring_all_gather"] == (40 * (world - 1), world - 1, world - 1)
        assert told["tree_broadcast"][0] <= 40 * rounds
        assert told["tree_reduce"][0] <= 40
        assert told["tree_all_reduce"][0] <= 40 * rounds
    assert ranks[0]["naive_all_reduce"] == (40 * (world - 1), world - 1, world - 1)
    assert ranks[0]["tree_broadcast"] == (40 * rounds, rounds, 0)
    assert ranks[0]["tree_reduce"] == (0, 0, rounds)
    messages = {"tree_broadcast": 1, "tree_reduce": 1, "tree_all_reduce": 2, "naive_all_reduce": 2}
    for name, times in messages.items():
        assert sum(told[name][0] for told in ranks) == times * (world - 1) * 40
    assert sum(told["ring_all_reduce"][0] for told in ranks) == 2 * (world - 1) * 40


def from_every_root(group):
    x = numbers(group.rank(), 3, torch.int64)
    return [
        (handmade.tree_broadcast(x, group, root), handmade.tree_reduce(x, group, root))
        for root in range(group.size())
    ]


@pytest.mark.parametrize("world", [1, 3, 4, 5])
def test_a_tree_may_hang_from_any_root(world):
    ranks = run_ranks(from_every_root, world)
    xs = [numbers(rank, 3, torch.int64) for rank in range(world)]
    for root in range(world):
        assert all(torch.equal(told[root][0], xs[root]) for told in ranks)
        assert torch.equal(ranks[root][root][1], sum(xs))


def outside_the_group(group):
    for f in (handmade.tree_broadcast, handmade.tree_reduce):
        for root in (-1, 2):
            with pytest.raises(ValueError, match=f"group_root {root} in a group of 2 ranks"):
                f(torch.ones(1), group, root)


def test_a_root_outside_the_group_is_an_error():
    run_ranks(outside_the_group, 2)


def in_rows_and_columns(world_group, order):
    mesh = Mesh(dp=2, tp=2, ranks=order)
    x = torch.tensor([10 ** dist.get_rank()])
    told = []
    for axis in ("dp", "tp"):
        group = mesh.group(axis)
        sums = [f(x, group).item() for f in ALL_REDUCES]
        told.append((mesh.ranks(axis), sums, handmade.ring_all_gather(x, group).tolist()))
        assert handmade.tree_broadcast(x, group).item() == 10 ** mesh.ranks(axis)[0]
    total = handmade.hierarchical_all_reduce(x.repeat(5), mesh.group("tp"), mesh.group("dp"))
    return told, total.tolist()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
def test_groups_whose_first_rank_is_not_0(order):
    for told, total in run_ranks(in_rows_and_columns, 4, order):
        for ranks, sums, gathered in told:
            assert sums == [sum(10**rank for rank in ranks)] * 3
            assert gathered == [10**rank for rank in ranks]
        assert total == [1111] * 5


def across_hosts(group):
    mesh = Mesh(dp=2, tp=2)  # two hosts of two ranks
    with CommLedger() as ledger:
        handmade.hierarchical_all_reduce(torch.ones(8), mesh.group("tp"), mesh.group("dp"))
    return ledger.bytes_sent(axis="dp"), ledger.bytes_sent(axis="tp")


def test_a_hierarchy_sends_a_chunk_between_hosts():
    """32 bytes, M = 2 hosts of L = 2: 2(M-1)/M S/L between hosts, 2(L-1)/L S inside one."""
    assert run_ranks(across_hosts, 4) == [(16, 32)] * 4
