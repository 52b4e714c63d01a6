"""Data, tensor and pipeline parallelism, ZeRO and recomputation at once: the run of one process.

Promised: losses, norms, weights and the optimizer's buffers over five clipped steps, for every
factorisation of 2 and 4 ranks and every stage of ZeRO, on all ranks. Oracle: one_process.py.
"""

from functools import partial
from itertools import product

import pytest
import torch

from labkit.comm.mesh import Mesh
from labkit.compose import Plan, parallelize
from labkit.compose.whole_state import load_whole_state, whole_state
from labkit.launch import run_ranks
from tests.compose.one_process import (
    ADAMW,
    CLIP,
    SGD,
    STEPS,
    TOL,
    assert_same,
    batch,
    decay,
    nano,
    serial,
)


def factorised(world_size):
    """All (dp, pp, tp) with this product."""
    sizes = [n for n in range(1, world_size + 1) if world_size % n == 0]
    return [axes for axes in product(sizes, repeat=3) if axes[0] * axes[1] * axes[2] == world_size]


def four_stages(dp, pp, tp):
    """ZeRO 0 to 3, each with another of the rest."""
    axes = dict(dp=dp, pp=pp, tp=tp)
    return [
        Plan(**axes, zero=0, num_micro_batches=2),
        Plan(**axes, zero=1, sequence_parallel=True, recompute="selective", schedule="gpipe"),
        Plan(**axes, zero=2, num_micro_batches=2, recompute="full"),
        Plan(**axes, zero=3, num_micro_batches=2, sequence_parallel=True, recompute="full"),
    ]


@pytest.mark.parametrize(("dp", "pp", "tp"), [n for w in (1, 2, 4) for n in factorised(w)])
def test_every_factorisation_at_every_stage_of_zero(dp, pp, tp):
    num_steps = STEPS if dp * pp * tp < 4 else 3
    assert_same(four_stages(dp, pp, tp), num_steps=num_steps, num_layers=max(2, pp))


def test_eight_ranks():
    axes = dict(dp=2, pp=2, tp=2, num_micro_batches=2)
    assert_same([Plan(**axes, zero=1, sequence_parallel=True), Plan(**axes, zero=3)], num_steps=2)


QWEN = dict(tied=True, qk_norm=True, attention_bias=True)


@pytest.mark.parametrize("changes", [dict(tied=True), QWEN], ids=["tied", "qwen"])
def test_a_tied_embedding_on_two_stages_counts_once(changes):
    axes = dict(pp=2, tp=2, num_micro_batches=2)
    plans = [Plan(**axes, sequence_parallel=True), Plan(**axes, zero=1, schedule="zb-h1")]
    assert_same(plans, **changes)


@pytest.mark.parametrize(
    ("axes", "stages"), [(dict(dp=2, tp=2), (0, 2, 3)), (dict(dp=2, pp=2), (0, 1))]
)
def test_a_tied_embedding_and_replicas(axes, stages):
    """Sharded too where it lies on one stage."""
    plans = [Plan(**axes, zero=zero, num_micro_batches=2) for zero in stages]
    assert_same(plans, tied=True)


def test_schedules():
    loop = dict(pp=2, schedule="interleaved", chunks=2, num_micro_batches=2)
    plans = [
        Plan(**loop, zero=0),
        Plan(**loop, zero=2, recompute="selective"),
        Plan(**loop, zero=3, recompute="full"),
        Plan(pp=2, schedule="zb-h1", num_micro_batches=4, zero=1),
    ]
    assert_same(plans, num_layers=4)


def test_split_backward_of_split_layers():
    axes = dict(pp=2, tp=2, schedule="zb-h1", num_micro_batches=4)
    assert_same([Plan(**axes), Plan(**axes, sequence_parallel=True, zero=1)], num_steps=2)


def test_one_head_of_keys_on_four_ranks():
    """And 259 words on four: the last rank's are padded."""
    plans = [Plan(tp=4, zero=1), Plan(tp=4, sequence_parallel=True, recompute="full")]
    assert_same(plans, num_kv_heads=1)


def test_layers_that_do_not_divide():
    assert_same([Plan(pp=3, num_micro_batches=4)], num_layers=4)


def test_adamw_with_options():
    """Decay by name reaches the right pieces; moments and steps are those of one process."""
    plans = [Plan(dp=2, tp=2, zero=zero, num_micro_batches=2) for zero in (0, 1, 3)]
    assert_same(plans, ADAMW)


def change_plans(group):
    """Two steps by one plan, one by another."""
    make = partial(parallelize, clip_norm=CLIP, options=decay)
    model = nano(num_layers=4)
    first = make(model, Plan(dp=2, tp=2, zero=3), Mesh(dp=2, tp=2), ADAMW)
    for step in range(2):
        first.step(*batch(step))
    plan = Plan(pp=2, dp=2, schedule="interleaved", chunks=2, num_micro_batches=2, zero=1)
    second = make(model, plan, Mesh(dp=2, pp=2), ADAMW)
    load_whole_state(whole_state(first), second)
    return second.step(*batch(2)).item(), whole_state(second)


def test_a_run_goes_on_under_another_plan():
    losses, _, state = serial(ADAMW, (("num_layers", 4),), 3)
    for loss, got in run_ranks(change_plans, 4):
        assert loss == pytest.approx(losses[2], rel=1e-9)
        torch.testing.assert_close(got, state, **TOL)


def low_precision(group, zero):
    """bf16 weights under a rate at which gains in bf16 would stand still."""
    make_optimizer = partial(torch.optim.SGD, lr=1e-3)
    plan, model = Plan(dp=2, zero=zero, num_micro_batches=2), nano().bfloat16()
    parallel = parallelize(model, plan, Mesh(dp=2), make_optimizer, clip_norm=CLIP)
    losses = [parallel.step(*batch(0)).item() for _ in range(3)]
    changed = {
        name: kept["weight"].double() - model.get_parameter(name).double()
        for name, kept in whole_state(parallel).items()
    }
    return losses, parallel.grad_norm.item(), changed


@pytest.mark.parametrize("zero", range(4))
def test_bf16_weights_have_fp32_masters(zero):
    """bf16 keeps 8 bits: losses and norms agree to 2 %, updates to 5 % of the largest."""
    losses, norms, state = serial(SGD, (), 1)
    for got, norm, changed in run_ranks(low_precision, 2, zero):
        assert norm == pytest.approx(norms[0], rel=0.02)
        assert got == pytest.approx([losses[0]] * 3, rel=0.02)
        for name, update in changed.items():
            expected = -3e-3 * state[name]["momentum_buffer"]  # of one step: the clipped gradient
            limit = 0.05 * expected.abs().max().item() + 2e-7  # three roundings of 1.0 in fp32
            torch.testing.assert_close(update, expected, rtol=0, atol=limit)
