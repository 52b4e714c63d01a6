"""Context and expert parallelism in a plan, with everything else: the run of one process.

Promised: losses, norms, weights, optimizer's buffers and balancing bias over three clipped steps,
on all ranks, for cp and ep with each of the other axes, every stage of ZeRO and recomputation.
Oracle: one_process.py, whose model has all experts and whole rows.
"""

import pytest

from labkit.compose import Plan
from tests.compose.one_process import ADAMW, SGD, assert_same

EXPERTS = dict(num_experts=4, top_k=2, balancing=True)
ALL_STAGES = range(4)


@pytest.mark.parametrize("context", ["ring", "gather", "heads"])
def test_a_row_over_two_and_four_ranks(context):
    """nano has 4 heads and 2 KV heads: over 4 ranks each KV head is sent to two."""
    for cp in (2, 4):
        assert_same([Plan(cp=cp, context=context, num_micro_batches=2)], num_steps=2)


def test_every_stage_of_zero_over_dp_and_cp():
    axes = dict(dp=2, cp=2, num_micro_batches=2)
    assert_same([Plan(**axes, zero=zero, recompute="full") for zero in ALL_STAGES], num_steps=2)


@pytest.mark.parametrize("axes", [dict(tp=2), dict(pp=2)], ids=["tp", "pp"])
def test_a_row_over_two_ranks_and_another_axis(axes):
    plans = [Plan(cp=2, **axes, num_micro_batches=2, zero=zero) for zero in (0, 1)]
    if "tp" in axes:
        plans.append(Plan(cp=2, **axes, sequence_parallel=True, recompute="selective"))
    assert_same(plans, num_steps=2)


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_experts_over_one_two_and_four_ranks(ep):
    plans = [
        Plan(ep=ep),
        Plan(ep=ep, num_micro_batches=2, recompute="full"),
        Plan(ep=ep, num_micro_batches=2, zero=2),
    ]
    assert_same(plans, balancing_rate=0.01, **EXPERTS)


def test_every_stage_of_zero_over_dp_and_ep():
    """Experts have two replicas, all else has four."""
    axes = dict(dp=2, ep=2, num_micro_batches=2)
    plans = [Plan(**axes, zero=zero) for zero in ALL_STAGES]
    assert_same(plans, balancing_rate=0.01, **EXPERTS)


def test_adamw_has_one_optimizer_for_both_kinds_of_weights():
    plans = [Plan(dp=2, ep=2, zero=zero, recompute="full") for zero in (0, 3)]
    assert_same(plans, ADAMW, num_steps=2, **EXPERTS)


@pytest.mark.parametrize("axes", [dict(tp=2), dict(pp=2), dict(cp=2)], ids=["tp", "pp", "cp"])
def test_experts_over_two_ranks_and_another_axis(axes):
    plans = [Plan(ep=2, **axes, num_micro_batches=2, zero=zero) for zero in (0, 3)]
    if "tp" in axes:
        plans.append(Plan(ep=2, **axes, sequence_parallel=True, recompute="full"))
    if "pp" in axes:
        plans.append(Plan(ep=2, **axes, schedule="zb-h1", num_micro_batches=2))
    assert_same(plans, SGD, num_steps=2, balancing_rate=0.01, **EXPERTS)


EIGHT = {
    "dp pp ep": Plan(dp=2, pp=2, ep=2, num_micro_batches=2, zero=1),
    "dp cp tp": Plan(dp=2, cp=2, tp=2, sequence_parallel=True),
    "pp cp ep": Plan(pp=2, cp=2, ep=2, num_micro_batches=2, zero=3),
    "cp ep tp": Plan(cp=2, ep=2, tp=2, context="gather"),
}


@pytest.mark.parametrize("name", EIGHT)
def test_eight_ranks(name):
    assert_same([EIGHT[name]], num_steps=2, balancing_rate=0.01, **EXPERTS)


def test_a_tied_embedding_and_both():
    plans = [Plan(pp=2, cp=2, zero=1), Plan(pp=2, ep=2)]
    assert_same(plans, num_steps=2, tied=True, **EXPERTS)
