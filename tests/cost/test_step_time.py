"""Seconds of a step.

Promised: parts sum to the whole, the bubble is pipeline.py's, each axis costs where it is used, and
ZeRO costs what it moves. Oracles: closed forms of pipeline.py and sharding.py; sums by hand.
"""

from dataclasses import fields, replace

import pytest

from labkit.cost.architecture import architecture
from labkit.cost.cluster import Cluster
from labkit.cost.hardware import DEVICES, device, link
from labkit.cost.layout import Layout
from labkit.cost.pipeline import fill_and_drain_bubble_s
from labkit.cost.rank_parameters import rank_tensors
from labkit.cost.software import DEEPSPEED, MEGATRON, TODAY
from labkit.cost.step_time import step_time, weights_of_rank

NODES = Cluster(device=device("a100-80"), intra=link("nvlink3"), inter=link("infiniband-hdr"))
LLAMA, GPT = architecture("llama3-8b"), architecture("megatron-22b")
WAITING = replace(TODAY, overlap_weights=False, overlap_gradients=False)


def test_parts_sum_to_the_whole():
    layout = Layout(dp=2, pp=4, cp=2, tp=2, num_micro_batches=8, zero=1, chunks=2)
    step = step_time(LLAMA, layout, NODES, 4096, MEGATRON)
    parts = [getattr(step, each.name) for each in fields(step) if each.name.endswith("_s")]
    assert len(parts) == 8
    assert sum(parts) == pytest.approx(step.total_s, rel=1e-12)
    assert all(part > 0 for part in parts if part != step.ep_s)
    assert step.ep_s == 0


def test_one_rank_has_compute_and_optimizer_only():
    step = step_time(LLAMA, Layout(num_micro_batches=3), NODES, 4096)
    assert step.total_s == step.compute_s + step.optimizer_s
    assert step_time(LLAMA, Layout(), NODES, 4096).compute_s == pytest.approx(step.compute_s / 3)


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_the_bubble_is_that_of_the_schedule_where_stages_are_alike(chunks):
    model = replace(LLAMA, vocab_size=1)  # a head that costs next to nothing
    layout = Layout(pp=4, num_micro_batches=8, chunks=chunks)
    step = step_time(model, layout, NODES, 4096)
    stage_s = step.compute_s / 8 / chunks
    assert step.bubble_s == pytest.approx(fill_and_drain_bubble_s(4, stage_s), rel=1e-3)


def test_the_last_rank_s_logits_hold_up_all_others():
    step = step_time(replace(LLAMA, vocab_size=512_000), Layout(pp=8), NODES, 4096)
    small = step_time(replace(LLAMA, vocab_size=1), Layout(pp=8), NODES, 4096)
    assert step.compute_s > 1.5 * small.compute_s


def test_layers_that_do_not_divide_leave_room_for_the_logits():
    """126 layers on 16 ranks: the first fourteen have 8, the last 7 and the logits."""
    model = architecture("llama3-405b")
    uneven = step_time(model, Layout(pp=16, tp=8, num_micro_batches=16), NODES, 8192)
    even = step_time(
        replace(model, num_layers=128), Layout(pp=16, tp=8, num_micro_batches=16), NODES, 8192
    )
    assert uneven.compute_s < even.compute_s


@pytest.mark.parametrize("model", ["llama3-8b", "megatron-22b", "mixtral-8x7b"])
@pytest.mark.parametrize("layout", [Layout(), Layout(tp=4), Layout(tp=2, pp=2)])
def test_weights_of_a_rank_are_the_counted_tensors(model, layout):
    """But for norms, biases, positions and the router: less than a hundredth."""
    counted = sum(each.num_parameters for each in rank_tensors(architecture(model), layout))
    assert sum(weights_of_rank(architecture(model), layout)) == pytest.approx(counted, rel=1e-2)


def test_what_each_stage_of_zero_exchanges():
    """Seconds of one all-gather in 16 bits as the unit; gradients are in 32."""
    sizes = dict(dp=64, num_micro_batches=2)
    steps = [step_time(LLAMA, Layout(zero=z, **sizes), NODES, 4096, WAITING) for z in range(4)]
    unit = 63 / 64 * 2 * weights_of_rank(LLAMA, Layout())[0] / (0.8 * 8 * 25e9)
    assert [step.dp_s / unit for step in steps] == pytest.approx([4, 3, 1 + 2 * 2, 2 * (2 + 2)])
    assert steps[0].optimizer_s == pytest.approx(64 * steps[1].optimizer_s)


def test_an_exchange_hides_behind_the_work_and_sticks_out_of_it():
    layout = Layout(dp=64, zero=3, micro_batch_size=4)
    assert step_time(LLAMA, layout, NODES, 4096).dp_s == 0
    slow = replace(NODES, inter=link("ethernet-1g"), intra=link("ethernet-1g"))
    hidden, waiting = (step_time(LLAMA, layout, slow, 4096, each) for each in (TODAY, WAITING))
    assert waiting.dp_s - hidden.dp_s == pytest.approx(hidden.compute_s, rel=1e-9)


def test_zero3_of_deepspeed_is_a_floor_that_more_gpus_do_not_lower():
    model, seconds = architecture("megatron-175b"), []
    for gpus, micro_batch in ((384, 4), (768, 2), (1536, 1)):
        layout = Layout(dp=gpus, zero=3, micro_batch_size=micro_batch, recompute="full")
        seconds.append(step_time(model, layout, NODES, 2048, DEEPSPEED).total_s)
    assert seconds[1] / seconds[0] > 0.7
    assert seconds[2] / seconds[1] > 0.95


def test_utilization_is_flops_over_time():
    layout = Layout(dp=2, tp=4, recompute="full", num_micro_batches=4)
    step = step_time(GPT, layout, NODES, 2048, MEGATRON)
    assert 0 < step.mfu < step.hfu < 0.8
    assert step.hfu / step.mfu == pytest.approx(4 / 3, rel=2e-2)  # the logits run once


def test_what_cannot_be_laid_out_is_refused():
    with pytest.raises(ValueError, match="32 layers over 64 stages"):
        step_time(LLAMA, Layout(pp=64), NODES, 4096)
    with pytest.raises(ValueError, match="32 heads over tp=3"):
        step_time(LLAMA, Layout(tp=3), NODES, 4096)


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_every_device_has_a_step_time(name):
    cluster = replace(NODES, device=device(name))
    assert step_time(LLAMA, Layout(dp=8), cluster, 2048).total_s > 0
