"""The mesh against arithmetic: a rank is a number, its digits the coordinates, tp the last of them.

Promised: groups, coordinates and neighbours for any sizes and any order of the ranks; own groups
named after their axis, also for axes of size one and axes that span the world; errors with both
numbers. The arithmetic is checked on every rank of large worlds without processes (torch's fake
process group), that groups work on real ones.
"""

from contextlib import contextmanager
from math import prod

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from labkit.comm.mesh import AXES, Mesh
from labkit.launch import run_ranks


@contextmanager
def fake_world(rank, world_size):
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def digits(place, sizes):
    """Coordinates of the place-th rank, by division."""
    out = {}
    for axis in reversed(AXES):
        place, out[axis] = divmod(place, sizes[axis])
    return out


def sizes_of(**given):
    return {axis: given.get(axis, 1) for axis in AXES}


WORLDS = [sizes_of(dp=2, pp=3, ep=2, tp=2), sizes_of(dp=2, cp=3, tp=2), sizes_of(pp=5), sizes_of()]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("sizes", WORLDS, ids=str)
def test_every_rank_of_the_grid(sizes, shuffled):
    world = prod(sizes.values())
    order = torch.randperm(world, generator=torch.Generator().manual_seed(1)).tolist()
    order = order if shuffled else list(range(world))
    for place, rank in enumerate(order):
        mine = digits(place, sizes)
        with fake_world(rank, world):
            mesh = Mesh(**sizes, ranks=order if shuffled else None, joint=[("cp", "dp")])
            for axis in AXES:
                rest = mine | {axis: 0}
                line = [r for p, r in enumerate(order) if digits(p, sizes) | {axis: 0} == rest]
                at = line.index(rank)
                assert (mesh.size(axis), mesh.coordinate(axis)) == (sizes[axis], mine[axis])
                assert mesh.ranks(axis) == tuple(line)
                assert dist.get_rank(mesh.group(axis)) == mine[axis] == at
                assert mesh.neighbours(axis) == (line[at - 1], line[(at + 1) % len(line)])
            free = {"dp": 0, "cp": 0}
            plane = [r for p, r in enumerate(order) if digits(p, sizes) | free == mine | free]
            assert mesh.ranks("dp", "cp") == mesh.ranks("cp", "dp") == tuple(plane)


def test_a_world_of_1024():
    with fake_world(777, 1024):
        mesh = Mesh(dp=16, pp=8, tp=8)
        assert [mesh.coordinate(axis) for axis in ("dp", "pp", "tp")] == [12, 1, 1]
        assert mesh.ranks("tp") == tuple(range(776, 784))
        assert mesh.ranks("ep") == (777,)


def described(group):
    mesh = Mesh(tp=2, joint=[("dp", "cp", "tp")])
    groups = [*(mesh.group(axis) for axis in AXES), mesh.group("dp", "cp", "tp")]
    own = len({g.group_name for g in (*groups, dist.group.WORLD)}) == 7
    return [g.group_desc for g in groups], own, [g.size() for g in groups], repr(mesh)


def test_groups_are_named_after_their_axis_and_are_the_meshs_own():
    for names, own, sizes, shown in run_ranks(described, 2):
        assert names == [*AXES, "dp+cp+tp"]
        assert own
        assert sizes == [1, 1, 1, 1, 2, 2]
        assert shown == "Mesh(dp=1, pp=1, cp=1, ep=1, tp=2)"


def rows_and_columns(world_group, order, axes):
    """Broadcast, gather and send in the groups through this rank, by global ranks."""
    mesh = Mesh(**dict.fromkeys(axes, 2), ranks=order)
    rank, told = dist.get_rank(), []
    for axis in axes:
        group, ranks = mesh.group(axis), mesh.ranks(axis)
        before, after = mesh.neighbours(axis)
        first, received, *gathered = (torch.tensor([rank]) for _ in range(4))
        dist.broadcast(first, src=ranks[0], group=group)
        dist.all_gather(gathered, torch.tensor([rank]), group=group)
        receive = dist.irecv(received, before, group)
        dist.send(torch.tensor([rank]), after, group)
        receive.wait()
        seen = tuple(torch.cat(gathered).tolist())
        told.append((ranks, before, first.item(), seen, received.item()))
    return told


@pytest.mark.parametrize("axes", [("dp", "tp"), ("pp", "cp"), ("ep", "tp")])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
def test_groups_work_whatever_their_first_global_rank(order, axes):
    (a, b), (c, d) = order[:2], order[2:]
    lines = [{(a, c), (b, d)}, {(a, b), (c, d)}]
    for rank, told in enumerate(run_ranks(rows_and_columns, 4, order, axes)):
        for (ranks, before, first, gathered, received), expected in zip(told, lines, strict=True):
            assert ranks in expected
            assert rank in ranks
            assert (first, gathered, received) == (ranks[0], ranks, before)


@pytest.mark.parametrize("world", [1, 3])
def test_odd_worlds(world):
    def neighbours(group):
        mesh = Mesh(cp=world)
        return mesh.neighbours("cp"), mesh.neighbours("tp")

    for rank, told in enumerate(run_ranks(neighbours, world)):
        assert told == (((rank - 1) % world, (rank + 1) % world), (rank, rank))


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"dp": 2, "tp": 2}, r"dp=2 \* pp=1 \* cp=1 \* ep=1 \* tp=2 = 4 ranks, the world has 6"),
        ({"dp": 6, "tp": 0}, "axis tp has size 0"),
        ({"dp": -2, "pp": -3}, "axis dp has size -2"),
        ({"dp": 6, "ranks": (0, 1, 2, 3, 4, 4)}, r"4, 4\) are not a permutation of 0 to 5"),
        ({"dp": 6, "ranks": range(5)}, "not a permutation of 0 to 5"),
        ({"dp": 6, "joint": [("dp", "sp")]}, "no axis 'sp': the axes are dp, pp, cp, ep, tp"),
    ],
)
def test_a_mesh_that_does_not_fit(arguments, match):
    with fake_world(0, 6), pytest.raises(ValueError, match=match):
        Mesh(**arguments)


def test_questions_about_axes_that_are_not_there():
    with fake_world(0, 6):
        mesh = Mesh(dp=3, tp=2)
        for ask in (mesh.size, mesh.coordinate, mesh.group, mesh.ranks, mesh.neighbours):
            with pytest.raises(ValueError, match="no axis 'sp': the axes are dp, pp, cp, ep, tp"):
                ask("sp")
        with pytest.raises(ValueError, match="a group needs an axis, of dp, pp, cp, ep, tp"):
            mesh.group()
        with pytest.raises(ValueError, match=r"joint=\[\('dp', 'tp'\)\]"):
            mesh.group("tp", "dp")
