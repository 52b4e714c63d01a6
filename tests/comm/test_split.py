"""Split: cut and join, fused matrices, and who holds what.

Promised: join(cut) is the tensor, bit for bit, for any size; padding is zero; a piece keeps nothing
of the full tensor alive; fused parts are each cut by themselves (pitfall T2); errors name both
numbers.
Oracle: slices written out by hand.
"""

import pytest
import torch
import torch.distributed as dist

from labkit.comm.mesh import Mesh
from labkit.comm.split import (
    Split,
    check_divides,
    check_indices,
    check_replicas,
    cut_fused,
    place_in,
    replica_group,
)
from labkit.launch import RankError, run_ranks


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("size", [1, 3, 11, 41, 259])
def test_join_undoes_cut(size, dim, world_size):
    shape = [5, 5]
    shape[dim] = size
    full = torch.randn(shape, generator=torch.Generator().manual_seed(size))
    full.view(-1)[0] = float("nan")
    split = Split(dim=dim, size=size, parts=world_size)
    pieces = [split.cut(full, rank, world_size) for rank in range(world_size)]
    for rank, piece in enumerate(pieces):
        assert piece.shape[dim] == split.piece == -(-size // world_size)
        assert piece.untyped_storage().nbytes() == piece.nbytes
        own = split.own_size(rank, world_size)
        assert not piece.narrow(dim, own, split.piece - own).any(), "padding is zero"
    assert torch.equal(split.join(pieces).view(torch.int32), full.view(torch.int32))


def test_replicas_hold_one_piece():
    full = torch.arange(8.0)
    split = Split(size=8, parts=2)
    pieces = [split.cut(full, rank, 4) for rank in range(4)]
    assert [piece.tolist()[0] for piece in pieces] == [0, 0, 4, 4]
    assert torch.equal(split.join(pieces), full)
    pieces[3] = pieces[3] + 1
    with pytest.raises(ValueError, match="ranks 2 and 3"):
        split.join(pieces)


def test_everyone_may_hold_the_whole():
    full = torch.arange(3.0)
    pieces = [Split(size=3).cut(full, rank, 4) for rank in range(4)]
    assert all(torch.equal(piece, full) for piece in pieces)
    assert pieces[0].data_ptr() != full.data_ptr()


def test_locate():
    words = torch.tensor([0, 2, 3, 10])
    local, mine = Split(size=11, parts=4).locate(words, 3, 4)  # pieces of 3: words 9, 10
    assert mine.tolist() == [False, False, False, True]
    assert local.tolist() == [0, 0, 0, 1]
    with pytest.raises(ValueError, match="11, and there are 11"):
        Split(size=11, parts=4).locate(torch.tensor([11]), 0, 4)
    with pytest.raises(ValueError, match="-1 to 4, and there are 5"):
        check_indices(torch.tensor([4, -1]), 5)
    check_indices(torch.tensor([], dtype=torch.long), 5)


def test_fused_parts_are_cut_by_themselves():
    """T2: gate and up of F = 4; then Q, K, V of 4, 2, 2 heads of width 2."""
    gate_up = torch.arange(8.0).unsqueeze(1)
    assert cut_fused(gate_up, (4, 4), 1, 0, 2).flatten().tolist() == [0, 1, 4, 5]
    assert cut_fused(gate_up, (4, 4), 1, 1, 2).flatten().tolist() == [2, 3, 6, 7]
    qkv = torch.arange(16.0)
    assert cut_fused(qkv, (4, 2, 2), 2, 0, 2).tolist() == [0, 1, 2, 3, 8, 9, 12, 13]
    with pytest.raises(ValueError, match=r"\(4, 2, 2\).*need 16 rows, the tensor has 14"):
        cut_fused(qkv[:14], (4, 2, 2), 2, 0, 2)
    with pytest.raises(ValueError, match="part of 2 over 4 ranks"):
        cut_fused(qkv, (4, 2, 2), 2, 0, 4)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"shape \(7,\), not 8"):
        Split(size=8, parts=2).cut(torch.ones(7), 0, 2)
    with pytest.raises(ValueError, match="2 pieces do not divide over 3"):
        Split(size=8, parts=2).cut(torch.ones(8), 0, 3)
    with pytest.raises(ValueError, match="8 heads over tp=3"):
        check_divides("heads", 8, 3)
    with pytest.raises(ValueError, match="4 KV heads over tp=3"):
        check_replicas("KV heads", 4, 3, None)
    with pytest.raises(ValueError, match="2 KV heads over tp=3"):
        check_replicas("KV heads", 2, 3, None)
    with pytest.raises(ValueError, match=r"2 KV heads over tp=4.*replica_group"):
        check_replicas("KV heads", 2, 4, None)


def who_replicates(group):
    mesh = Mesh(dp=2, tp=2)
    line = Mesh(tp=4, ranks=(3, 1, 2, 0)).group("tp")
    groups = [replica_group(group, 2), replica_group(mesh.group("tp"), 1), replica_group(line, 2)]
    return [(dist.get_process_group_ranks(each), each.group_desc) for each in groups]


def test_replica_groups():
    """In a world, in each line of a mesh, and in a group of another order."""
    pairs = run_ranks(who_replicates, 4)
    assert [[ranks for ranks, _ in found] for found in pairs] == [
        [[0, 1], [0, 1], [2, 0]],
        [[0, 1], [0, 1], [3, 1]],
        [[2, 3], [2, 3], [2, 0]],
        [[2, 3], [2, 3], [3, 1]],
    ]
    assert {name for found in pairs for _, name in found} == {"kv"}


def not_mine(group):
    pair = dist.new_group([0, 1])
    return place_in(pair)


def test_a_group_that_is_not_the_callers():
    with pytest.raises(RankError, match="rank 2 is not in the group"):
        run_ranks(not_mine, 3)
