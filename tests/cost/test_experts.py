"""What a mixture of experts costs: the formulas against the ledger and the layers.

Promised: bytes of dispatch, combine, backward and counts are the ledger's and nothing else is sent;
even routing sends (ep−1)/ep of all copies; weights are those of the modules.
Oracle: measure.ledger around a run, and counted parameters. All compared for equality.
"""

from fractions import Fraction

import pytest
import torch
import torch.distributed as dist

from labkit.cost.experts import (
    ExpertShape,
    balanced_bytes,
    combine_bytes,
    counts_bytes,
    dispatch_bytes,
    imbalance,
    layer_parameters,
    rank_loads,
    rank_parameters,
    step_bytes,
)
from labkit.launch import run_ranks
from labkit.measure.ledger import CommLedger
from labkit.model.moe import MoE
from labkit.parallel.expert import ExpertParallelMoE

COPIES = {
    1: [[3, 0, 2, 1]],
    2: [[3, 0, 2, 1], [0, 0, 5, 0]],
    4: [[3, 0, 2, 1], [0, 0, 0, 0], [0, 4, 0, 0], [1, 1, 1, 1]],
}


def shape_of(ep, **changes):
    sizes = dict(hidden_size=5, intermediate_size=7, num_experts=4, top_k=1, number_bytes=8)
    return ExpertShape(**(sizes | changes), ep=ep)


def layer(top_k=1):
    return MoE(hidden_size=5, intermediate_size=7, num_experts=4, top_k=top_k).double()


def measured(group, copies):
    """Bytes of each call forward, of all backward, and weights held, for copies [ep][E]."""
    parallel = ExpertParallelMoE(layer(), group)
    indices = torch.arange(4).repeat_interleave(torch.tensor(copies[dist.get_rank(group)]))
    x = torch.ones(len(indices), 5, dtype=torch.float64, requires_grad=True)
    routing = parallel.route(x)._replace(indices=indices.unsqueeze(-1))
    with CommLedger() as forward:
        out = parallel.mix(x, routing)
    with CommLedger() as backward:
        out.sum().backward()
    sent = [call.bytes_sent for call in forward.ops]
    return sent, backward.bytes_sent(), sum(p.numel() for p in parallel.parameters())


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_the_ledger_is_the_formulas(ep):
    shape, copies = shape_of(ep), COPIES[ep]
    for rank, (sent, back, weights) in enumerate(run_ranks(measured, ep, copies, device="cpu")):
        dispatch, combine = (f(shape, copies, rank) for f in (dispatch_bytes, combine_bytes))
        assert sent == [counts_bytes(shape), dispatch, combine]
        assert (sum(sent), back) == step_bytes(shape, copies, rank)
        assert weights == rank_parameters(shape)


def test_bytes_by_hand():
    shape = shape_of(2)
    assert rank_loads(shape, COPIES[2]) == [[3, 3], [0, 5]]
    assert [dispatch_bytes(shape, COPIES[2], rank) for rank in (0, 1)] == [3 * 40, 0]
    assert [combine_bytes(shape, COPIES[2], rank) for rank in (0, 1)] == [0, 3 * 40]
    assert counts_bytes(shape) == 2 * 8


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_even_routing_sends_all_but_the_ranks_own_share(ep):
    shape, copies = shape_of(ep, top_k=2), [[3] * 4] * ep  # 6 tokens a rank, k = 2
    assert balanced_bytes(shape, 6) == Fraction(ep - 1, ep) * 12 * 40
    for rank in range(ep):
        assert dispatch_bytes(shape, copies, rank) == balanced_bytes(shape, 6)
        assert combine_bytes(shape, copies, rank) == balanced_bytes(shape, 6)


def test_parameters_are_those_of_the_layer():
    moe = layer(top_k=2)
    total, active = layer_parameters(shape_of(1, top_k=2))
    assert total == sum(p.numel() for p in moe.parameters())
    assert total - active == sum(p.numel() for f in moe.experts[:2] for p in f.parameters())


def test_imbalance():
    assert imbalance([4, 4, 4]) == 1
    assert imbalance([0, 0, 9, 0]) == 4
    assert imbalance([3, 1]) == Fraction(3, 2)
    assert imbalance([0, 0]) == 1


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="4 experts over ep=3"):
        shape_of(3)
    with pytest.raises(ValueError, match="top_k 5 of 4"):
        shape_of(2, top_k=5)
    with pytest.raises(ValueError, match=r"1 rows of \[4\] experts, not 2 of 4"):
        dispatch_bytes(shape_of(2), COPIES[1], 0)
