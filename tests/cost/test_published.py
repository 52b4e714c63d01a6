"""Published runs as data, held against each other.

Promised: what is typed is consistent with what the same papers print beside it. Oracles: printed
sizes, aggregate rates, days, MFU and HFU, none of which the rows contain.
"""

import pytest

from labkit.cost.counting import num_parameters, training_flops
from labkit.cost.published import MEGATRON_RUNS, gpt, megatron_flops
from labkit.cost.published_llama import RUNS

PEAK = 312e12


def rows(table):
    return [run for run in RUNS if run.table == table]


def test_there_are_as_many_rows_as_the_tables_have():
    names = ("megatron-weak-scaling", "zero3-and-3d", "recomputation", "llama3")
    assert [len(rows(name)) for name in names] == [10, 12, 8, 3]
    assert len(RUNS) == 33
    assert len({(run.table, run.name) for run in RUNS}) == 33
    assert len(MEGATRON_RUNS) == 30


def test_sizes_are_those_in_the_names():
    """Table 1 prints parameters in billions; our count has all biases, too."""
    for run in rows("megatron-weak-scaling"):
        billions, gpus = run.name.split("B on ")
        rounding = 0.05 + 0.002 * float(billions)
        assert num_parameters(run.model) / 1e9 == pytest.approx(float(billions), abs=rounding)
        assert run.layout.world_size == int(gpus)


def test_aggregate_rates_of_table_1():
    """PFLOP/s over all GPUs, as printed; rates a GPU are rounded to whole TFLOP/s."""
    printed = (4.4, 8.8, 18.2, 34.6, 70.8, 143.8, 227.1, 297.4, 410.2, 502.0)
    for run, aggregate in zip(rows("megatron-weak-scaling"), printed, strict=True):
        whole = run.measured_flops_per_s * run.layout.world_size / 1e15
        assert whole == pytest.approx(aggregate, rel=0.012)


def test_batches_are_those_printed():
    weak = (512, 512, 512, 1024, 1536, 1792, 2304, 2160, 2520, 3072)
    zero3 = (1536, 1536, 1536, 2560, 2240, 2240)
    assert tuple(run.layout.batch_size for run in rows("megatron-weak-scaling")) == weak
    both = tuple(run.layout.batch_size for run in rows("zero3-and-3d"))
    assert both == (*zero3, *(1536,) * 3, *(2240,) * 3)
    recompute = tuple(run.layout.batch_size for run in rows("recomputation"))
    assert recompute == (4, 4, 64, 64, 280, 280, 512, 512)


def test_days_of_table_2():
    """To train on 300 billion tokens, as printed, in whole days."""
    printed = (90, 74, 74, 169, 137, 140, 84, 43, 23, 156, 80, 42)
    for run, days in zip(rows("zero3-and-3d"), printed, strict=True):
        steps = 300e9 / (run.layout.batch_size * run.seq_len)
        assert steps * run.measured_s / 86_400 == pytest.approx(days, rel=0.025)


def test_utilization_of_table_5():
    """MFU and HFU of the present work, as printed, from its seconds. Its appendix counts the core
    that runs again as s/(6h) of the products, as much as forward and backward together."""
    printed = ((41.5, 43.7), (51.4, 52.8), (56.0, 57.0), (56.3, 57.0))
    runs = [run for run in rows("recomputation") if run.layout.recompute == "selective"]
    for run, (mfu, hfu) in zip(runs, printed, strict=True):
        h, tokens = run.model.hidden_size, run.layout.batch_size * run.seq_len
        again = 72 * tokens * run.model.num_layers * h**2 * run.seq_len / (6 * h)
        available = run.measured_s * run.layout.world_size * PEAK
        assert 100 * run.flops / available == pytest.approx(mfu, rel=0.01)
        assert 100 * (run.flops + again) / available == pytest.approx(hfu, rel=0.01)


def test_llama_s_mfu_and_tokens():
    """Printed: 43, 41 and 38 % of the H100's dense BF16 peak, 16 million tokens a batch."""
    for run, mfu in zip(rows("llama3"), (43, 41, 38), strict=True):
        assert run.layout.batch_size * run.seq_len == 16 * 2**20
        peak = run.cluster.device.flops_per_s("bf16")
        assert 100 * run.measured_flops_per_s / peak == pytest.approx(mfu, abs=0.7)
    assert [run.layout.world_size for run in rows("llama3")] == [8192, 16_384, 16_384]


def test_the_papers_equation_is_the_count_with_full_recomputation():
    """Two counts of the same work; the paper's runs all of it again but the logits."""
    for model in (gpt(24, 2304, 24), gpt(128, 25_600, 160)):
        counted = training_flops(model, 3 * 2048, 2048, causal=False, recompute="full")
        assert megatron_flops(model, 3, 2048) == pytest.approx(counted, rel=1e-9)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.table}-{run.name}")
def test_every_layout_is_legal(run):
    run.layout.check(run.model, run.seq_len)
    assert run.measured_s > 0
