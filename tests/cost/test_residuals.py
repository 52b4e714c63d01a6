"""The step-time model against published runs.

Promised: every row that counts is within 15 % (10 % for the tables of Megatron's weak scaling and
of Llama 3), ratios within 10 %, with one share of the peak a device, and better than the best
constant. Oracles: the papers' own numbers.

One fitted share absorbs much of what a model forgets: a model with a part left out and fitted anew
fails a gate, but some only one. Where all constants stay, every fault is plain.
"""

from dataclasses import replace

import pytest

from labkit.cost import residuals as model
from labkit.cost.assumptions import ASSUMPTIONS, LLAMA, RECOMPUTATION, TABLES, WEAK, ZERO3
from labkit.cost.efficiency import EFFICIENCY, Efficiency
from labkit.cost.residuals import (
    FITTED,
    Residual,
    best_constant_error,
    fit,
    largest_error,
    layer_residuals,
    predicted,
    recompute_ratios,
    residual_table,
    residuals,
    row,
    zero3_ratios,
)
from labkit.cost.software import ZERO3_BYTES_PER_S
from labkit.cost.step_time import step_time

GATES = {WEAK: 0.10, ZERO3: 0.15, RECOMPUTATION: 0.15, LLAMA: 0.10}
CONSTANTS = {WEAK: 0.094, ZERO3: 0.591, RECOMPUTATION: 0.271, LLAMA: 0.062}


@pytest.mark.parametrize("table", TABLES)
def test_every_row_is_within_its_gate_and_the_table_beats_the_best_constant(table):
    rows = residuals(table)
    assert largest_error(rows) < GATES[table], "\n" + residual_table(rows)
    assert best_constant_error(table) == pytest.approx(CONSTANTS[table], abs=5e-4)
    assert largest_error(rows) < best_constant_error(table)


def test_llama_s_two_rows_that_count_are_better_served_by_a_constant():
    """The miss that the docstring owns: 400 and 380 TFLOP/s alone are 2.6 % from their middle."""
    assert (400 - 380) / (400 + 380) < largest_error(residuals(LLAMA)) < 0.05


@pytest.mark.parametrize("ratios", [recompute_ratios, zero3_ratios])
def test_ratios_are_within_a_tenth(ratios):
    assert largest_error(ratios()) < 0.10, "\n" + residual_table(ratios(), "")


def test_a_layer_is_within_a_tenth_although_nothing_was_fitted_on_it():
    rows = layer_residuals()
    assert len(rows) == 10
    assert largest_error(rows) < 0.10
    assert largest_error(tuple(each for each in rows if "forward" in each.name)) < 0.02


@pytest.mark.parametrize(("recompute", "mfu"), [("full", 0.421), ("selective", 0.542)])
def test_a_run_that_is_in_no_table_is_within_a_tenth(recompute, mfu):
    """530B on 2,240 GPUs: the abstract of arXiv 2205.05198."""
    run = row(f"recomputation: 530B {recompute}")
    step = predicted(replace(run, layout=replace(run.layout, dp=8)))
    assert step.work.layout.world_size == 2240
    assert step.mfu == pytest.approx(mfu, rel=0.10)


def test_constants_are_what_their_rows_give():
    found = fit()
    assert EFFICIENCY["a100-80"].peak_share == pytest.approx(found.a100_peak_share, abs=5e-5)
    assert EFFICIENCY["h100"].peak_share == pytest.approx(found.h100_peak_share, abs=5e-5)
    assert pytest.approx(found.zero3_bytes_per_s, abs=5e6) == ZERO3_BYTES_PER_S


def test_at_most_two_rows_a_device_are_fitted_and_none_of_them_counts():
    devices = [row(name).cluster.device.name for name in FITTED]
    assert sorted(devices) == ["a100-80", "a100-80", "h100"]
    marked = [f"{t}: {each.name}" for t in TABLES for each in residuals(t) if each.fitted]
    assert sorted(marked) == sorted(FITTED)
    exact = Residual(name="fitted", measured=1, predicted=9, fitted=True)
    assert largest_error((exact, Residual(name="not", measured=2, predicted=1))) == 0.5


def without_bubble(run_model, layout, *rest):
    return replace(step_time(run_model, layout, *rest), bubble_s=0.0)


def without_tp(run_model, layout, *rest):
    return replace(step_time(run_model, layout, *rest), tp_s=0.0)


def without_recomputation(run_model, layout, *rest):
    return step_time(run_model, replace(layout, recompute="none"), *rest)


def without_data(run_model, layout, *rest):
    return replace(step_time(run_model, layout, *rest), dp_s=0.0)


def without_chunks(run_model, layout, *rest):
    return step_time(run_model, replace(layout, chunks=1), *rest)


FAULTS = (without_bubble, without_tp, without_recomputation, without_data, without_chunks)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_without_a_part_fails_though_it_is_fitted_anew(monkeypatch, fault):
    monkeypatch.setattr(model, "step_time", fault)
    found = fit()
    for name, share in (("a100-80", found.a100_peak_share), ("h100", found.h100_peak_share)):
        monkeypatch.setitem(EFFICIENCY, name, Efficiency(peak_share=share))
    misses = [t for t in TABLES if largest_error(residuals(t)) >= GATES[t]]
    assert misses or max(map(largest_error, (recompute_ratios(), zero3_ratios()))) >= 0.10


@pytest.mark.parametrize("fault", FAULTS)
def test_a_part_left_out_is_plain_where_constants_stay(monkeypatch, fault):
    monkeypatch.setattr(model, "step_time", fault)
    assert any(largest_error(residuals(table)) > 1.1 * GATES[table] for table in TABLES)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="no table 'x'; known are megatron-weak-scaling"):
        residuals("x")
    with pytest.raises(ValueError, match="no published run 'y'"):
        row("y")


def test_the_table_prints_every_row_and_marks_the_fitted_one():
    text = residual_table(residuals(RECOMPUTATION))
    assert len(text.splitlines()) == 9
    marked = next(line for line in text.splitlines() if line.endswith("fitted"))
    assert marked.startswith("175B selective")


def test_every_assumption_says_what_and_why_and_every_table_has_some():
    assert all(each.what and each.why for each in ASSUMPTIONS)
    assert {table for each in ASSUMPTIONS for table in each.tables} == set(TABLES)
