"""A tensor that a group cannot reach is refused on every rank, before anything is sent."""

import pytest
import torch
import torch.distributed as dist

from labkit.comm import collectives, handmade
from labkit.comm.devices import require_device
from labkit.launch import RankError, device, run_ranks
from labkit.measure.ledger import CommLedger

TAKE_A_GROUP = [
    *(collectives.copy_to, collectives.reduce_from, collectives.gather_from),
    *(collectives.scatter_to, collectives.all_gather, collectives.reduce_scatter),
    *(collectives.all_to_all, collectives.all_reduce),
    *(handmade.naive_all_reduce, handmade.ring_reduce_scatter, handmade.ring_all_gather),
    *(handmade.ring_all_reduce, handmade.tree_broadcast, handmade.tree_reduce),
    handmade.tree_all_reduce,
]


def refused_by(group, functions):
    """Names of those that refuse a meta tensor in the right words, and the calls that were made."""
    refusing = []
    with CommLedger() as ledger:
        for function in functions:
            with pytest.raises(ValueError, match="a tensor on meta over a group that reaches cpu"):
                function(torch.ones(4, 2, device="meta"), group)
            refusing.append(function.__name__)
    return refusing, ledger.count()


def test_every_function_refuses_a_tensor_on_the_wrong_device():
    wanted = [function.__name__ for function in TAKE_A_GROUP]
    assert run_ranks(refused_by, 2, TAKE_A_GROUP) == [(wanted, 0)] * 2


def test_the_mistake_of_one_rank_is_reported_as_its_own():
    def one_errs(group):
        where = "meta" if dist.get_rank(group) == 1 else device()
        handmade.ring_all_reduce(torch.ones(4, device=where), group)

    with pytest.raises(RankError, match=r"rank 1 of 2 failed first: ValueError: a tensor on meta"):
        run_ranks(one_errs, 2, timeout=10.0)


def test_the_right_device_passes():
    run_ranks(lambda group: require_device(torch.ones(1, device=device()), group), 1)
