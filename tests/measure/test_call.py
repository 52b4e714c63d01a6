"""A call's group, ranks and peer: global ranks, also where the group does not begin with rank 0."""

import pytest
import torch
import torch.distributed as dist

from labkit.launch import RankError, run_ranks
from labkit.measure.hook import subscribed


def in_the_upper_pair(group):
    pair = dist.new_group([1, 2], group_desc="pair")
    rank, heard, x = dist.get_rank(), [], torch.ones(2)
    if rank == 0:
        return None
    with subscribed(heard.append):
        dist.broadcast(x, 2, pair)
        dist.reduce(x, 1, group=pair)
        dist.scatter(x, [x.clone(), x.clone()] if rank == 2 else None, 2, pair)
        (dist.send if rank == 1 else dist.recv)(x, 3 - rank, pair, tag=7)
    facts = {(call.axis, call.ranks, call.rank, call.group_rank) for call in heard}
    return (
        facts,
        [call.peer for call in heard],
        [call.payload_bytes for call in heard],
        heard[-1].tag,
    )


def test_ranks_and_peers_are_global():
    _, first, second = run_ranks(in_the_upper_pair, 3)
    assert first == ({("pair", (1, 2), 1, 0)}, [2, 1, 2, 2], [8, 8, 8, 8], 7)
    assert second == ({("pair", (1, 2), 2, 1)}, [2, 1, 2, 1], [8, 8, 16, 8], 7)


def test_a_rank_that_is_not_in_the_group_is_named_with_the_groups_size():
    def sends(group):
        dist.send(torch.ones(2), 99, group=group)

    with pytest.raises(RankError, match="send names rank 99; the group has 2 ranks"):
        run_ranks(sends, 2)
