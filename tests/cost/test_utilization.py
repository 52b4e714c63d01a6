"""MFU and HFU. Oracles: the figures that PaLM and Megatron-LM print for their own runs."""

import pytest

from labkit.cost.architecture import architecture
from labkit.cost.counting import training_flops
from labkit.cost.hardware import device
from labkit.cost.utilization import (
    flops_utilization,
    hfu,
    mfu,
    palm_mfu,
    step_time_of_utilization_s,
    tokens_per_s,
)


def test_palm_540b():
    """arXiv 2204.02311: 540.35e9 parameters, 118 layers, 48 heads of 256, 2048 tokens; 238.3
    thousand tokens a second on 6144 TPU v4 of 275 TFLOP/s are 46.2 %, 45.7 without attention."""
    run = dict(observed_tokens_per_s=238_300, num_devices=6144, peak_flops_per_s=275e12)
    assert round(palm_mfu(540.35e9, 118, 48, 256, 2048, **run), 3) == 0.462
    assert round(palm_mfu(540.35e9, 118, 48, 256, 0, **run), 3) == 0.457


# arXiv 2205.05198, table 5: batch, devices, seconds a step, MFU, HFU.
MEGATRON = {
    "megatron-22b": (4, 8, 1.10, 0.415, 0.437),
    "megatron-175b": (64, 64, 13.75, 0.514, 0.528),
    "megatron-530b": (280, 280, 37.83, 0.560, 0.570),
    "megatron-1t": (512, 512, 71.49, 0.563, 0.570),
}


def run_of(name):
    batch_size, num_devices, step_time_s, _, _ = MEGATRON[name]
    return dict(
        num_tokens=batch_size * 2048,
        seq_len=2048,
        step_time_s=step_time_s,
        num_devices=num_devices,
        peak_flops_per_s=device("a100-80").flops_per_s("bf16"),
        causal=False,
    )


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_prints_the_utilization_of_its_step_times(name):
    # All pairs, as the paper counts. The first step time has two digits after the point of three.
    assert mfu(architecture(name), **run_of(name)) == pytest.approx(MEGATRON[name][3], abs=0.002)


@pytest.mark.parametrize("name", MEGATRON)
def test_hardware_utilization_is_higher_by_what_ran_again(name):
    model = architecture(name)
    share = mfu(model, **run_of(name))
    assert hfu(model, **run_of(name), recompute="none") == share
    assert share < hfu(model, **run_of(name), recompute="selective") < share * 1.03
    assert 1.31 < hfu(model, **run_of(name), recompute="full") / share < 4 / 3


@pytest.mark.parametrize("name", MEGATRON)
def test_the_papers_hfu_counts_the_core_three_times_over(name):
    """Selective recomputation runs it forward again; the printed column has backward too."""
    model = architecture(name)
    share = mfu(model, **run_of(name))
    again = hfu(model, **run_of(name), recompute="selective") - share
    assert share + 3 * again == pytest.approx(MEGATRON[name][4], abs=0.0025)


@pytest.mark.parametrize("utilization", [0.01, 0.4, 1.0])
def test_back_and_forth(utilization):
    work = training_flops(architecture("llama3-8b"), 2**20, 8192)
    step = step_time_of_utilization_s(work, utilization, 64, 1e15)
    assert flops_utilization(work, step, 64, 1e15) == pytest.approx(utilization)
    assert tokens_per_s(2**20, step) * step == pytest.approx(2**20)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"got 0 s, 8 devices"):
        flops_utilization(1e15, 0, 8, 1e15)
    with pytest.raises(ValueError, match=r"2 s, 0 devices"):
        flops_utilization(1e15, 2, 0, 1e15)
    with pytest.raises(ValueError, match=r"at most 1, got 1\.5"):
        step_time_of_utilization_s(1e15, 1.5, 8, 1e15)
    with pytest.raises(ValueError, match="more than 0 s, got -1"):
        tokens_per_s(8, -1)
