"""Ring exchange against rotating a list on one process.

Promised: what the neighbour put in, for several tensors at once, any strides, both directions, any
group; the tensors that were sent stay as they were; work can be done between start and finish.
"""

import pytest
import torch
import torch.distributed as dist

from labkit.comm.mesh import Mesh
from labkit.comm.ring import finish, start
from labkit.launch import RankError, run_ranks


def pair(rank):
    g = torch.Generator().manual_seed(rank)
    return [torch.randn(3, 5, generator=g).T, torch.arange(4)[1:] + rank]


def once(group, reverse):
    k, v = pair(group.rank())
    exchange = start([k, v], group, reverse=reverse)
    product = k.T @ k  # reads what is being sent
    received = finish(exchange)
    untouched = all(map(torch.equal, (k, v), pair(group.rank())))
    own = all(a.data_ptr() != b.data_ptr() for a, b in zip((k, v), received, strict=True))
    return received, untouched and own and product.shape == (3, 3)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_tensors_move_by_one_place(world, reverse):
    for rank, (received, fine) in enumerate(run_ranks(once, world, reverse)):
        source = (rank + 1 if reverse else rank - 1) % world
        assert fine
        assert all(map(torch.equal, received, pair(source)))


def all_the_way_round(group):
    x = [torch.tensor([group.rank()])]
    seen = []
    for _ in range(group.size()):
        exchange = start(x, group)
        seen.append(x[0].item())
        x = finish(exchange)
    return seen, x[0].item()


@pytest.mark.parametrize("world", [1, 3, 4])
def test_a_full_turn_shows_every_rank_once_and_comes_home(world):
    for rank, (seen, home) in enumerate(run_ranks(all_the_way_round, world)):
        assert seen == [(rank - step) % world for step in range(world)]
        assert home == rank


def in_every_group(world_group, order):
    mesh = Mesh(dp=2, cp=2, ranks=order)
    told = []
    for axis in ("dp", "cp"):
        exchange = start([torch.tensor([dist.get_rank()])], mesh.group(axis))
        told.append((finish(exchange)[0].item(), mesh.neighbours(axis)[0]))
    return told


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
def test_peers_are_global_ranks(order):
    for told in run_ranks(in_every_group, 4, order):
        assert all(received == before for received, before in told)


def odd_messages(group):
    empty, nothing = finish(start([torch.ones(0, 3)], group)), finish(start([], group))
    half = finish(start([torch.full((2,), group.rank(), dtype=torch.bfloat16)], group))
    learned = torch.ones(2, requires_grad=True)
    (received,) = finish(start([learned], group))
    return empty[0].shape, nothing, half[0].tolist(), received.requires_grad


def test_empty_tensors_no_tensors_and_half_precision():
    for rank, (shape, nothing, half, needs_grad) in enumerate(run_ranks(odd_messages, 2)):
        assert shape == (0, 3)
        assert nothing == []
        assert half == [1 - rank] * 2
        assert not needs_grad


def test_a_single_tensor_is_not_taken_for_a_list_of_rows():
    with pytest.raises(RankError, match="ValueError: start takes a list of tensors"):
        run_ranks(lambda group: start(torch.ones(2, 2), group), 1)
