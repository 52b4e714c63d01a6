"""Lab 01: what the bank of wrong solutions cannot show about its checks.

Promised: what a model is measured to have is what the course's formulas say; mistakes give numbers
that differ, so a message names the right one; a product at the least number of rows is on the
ridge; segments hold what the model of their memory says; the hunted bug cannot be seen where
segments do not come out even; laws can be found from their records; no answer is longer than its
text says. Oracle: labkit.cost, published sizes, a model in mixed precision, the plain run, files.
"""

import json
import re
from math import isclose
from pathlib import Path

import pytest
import torch

from labkit.cost.activations import BlockShape, block_activation_bytes
from labkit.cost.scaling_laws import fit
from labkit.grade import lab01_run
from labkit.grade.bank import read_bank, try_solution
from labkit.grade.catalogue import entries
from labkit.grade.lab01 import EXERCISES
from labkit.grade.lab01_count import (
    CLOSE,
    GIB,
    STATE_BYTES,
    activation_causes,
    cache_causes,
    flop_causes,
    parameter_causes,
    state_causes,
)
from labkit.grade.lab01_measured import (
    cache_numbers,
    forward_flops,
    layer_bytes,
    num_parameters,
    questions,
)
from labkit.grade.lab01_roofline import PRODUCTS, WEIGHTS, exact, least_rows
from labkit.grade.lab01_run import RUNS, SLACK_BYTES, SUSPECTS, again_by, planned, run_plainly
from labkit.grade.lab01_run_ranks import BOUNDARY_BYTES, LAYER_BYTES
from labkit.grade.lab01_scaling import CLOSE as LAW_CLOSE
from labkit.grade.lab01_scaling import MINI, MINI_CLOSE, RECORDS, SETS
from labkit.grade.lab01_segments import cases, fewest_again, held
from labkit.measure.memory import module_bytes
from labkit.model.config import PRESETS, ModelConfig
from labkit.model.transformer import Transformer

ROOT = Path(__file__).parents[2]
MASTER = ROOT / "labs" / "masters" / "lab01_price.md"
SCALING = ROOT / "book" / "results" / "scaling.json"
FIRST = questions()[0]


def test_measured_parameters_are_the_published_ones():
    assert num_parameters(PRESETS["llama3-8b"]) == 8_030_261_248
    assert num_parameters(PRESETS["llama3-70b"]) == 70_553_706_496


@pytest.mark.parametrize("q", questions(plain=True), ids=str)
def test_a_measured_layer_is_what_the_course_counts(q):
    c = q.config
    sizes = ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")
    shape = BlockShape(
        batch_size=q.batch_size, seq_len=q.seq_len, **{name: getattr(c, name) for name in sizes}
    )
    expected = block_activation_bytes(shape, autocast=False)
    assert layer_bytes(c, q.batch_size, q.seq_len) == expected


def test_a_model_in_mixed_precision_holds_16_bytes_a_parameter():
    model = Transformer(PRESETS["nano"]).bfloat16()
    master = [p.detach().float() for p in model.parameters()]
    optimizer = torch.optim.AdamW(master)
    for parameter, copy in zip(model.parameters(), master, strict=True):
        parameter.grad = torch.zeros_like(parameter)
        copy.grad = torch.zeros_like(copy)  # cast for the update, and dropped
    optimizer.step()
    optimizer.zero_grad()
    steps = 4 * len(master)  # one number a tensor: how often it was updated
    total = module_bytes(model, optimizer).total_bytes - steps
    assert total == STATE_BYTES * num_parameters(PRESETS["nano"])


def test_the_questions_cover_what_the_lab_promises():
    configs = [q.config for q in questions()]
    for flag in ("tied", "qk_norm", "attention_bias"):
        assert {getattr(c, flag) for c in configs} == {True, False}
    assert any(c.num_heads * c.head_dim != c.hidden_size for c in configs)
    assert any(c.num_kv_heads == 1 for c in configs)
    assert 1 in {q.batch_size for q in questions(plain=True)}
    first = FIRST.config
    assert isinstance(first, ModelConfig)
    assert not any((first.tied, first.qk_norm, first.attention_bias))


def numbers_of(causes):
    """(cause, number) of everything that a mistake can give."""
    for name, value in causes.items():
        for number in value if isinstance(value, set) else {value}:
            if number is not None:
                yield name, number


@pytest.mark.parametrize(
    ("causes", "expected"),
    [
        (parameter_causes(FIRST), num_parameters(FIRST.config)),
        (flop_causes(FIRST), forward_flops(FIRST.config, FIRST.batch_size, FIRST.seq_len)),
        (activation_causes(FIRST), layer_bytes(FIRST.config, FIRST.batch_size, FIRST.seq_len)),
        (
            cache_causes(FIRST, 1),
            cache_numbers(FIRST.config, FIRST.batch_size, FIRST.seq_len),
        ),
        (state_causes(FIRST), STATE_BYTES * num_parameters(FIRST.config) / GIB),
    ],
    ids=["parameters", "flops", "activations", "cache", "state"],
)
def test_mistakes_differ_from_each_other(causes, expected):
    formats = ("elements", "two_bytes")  # those show nothing where a number has one byte
    found = [(n, v) for n, v in numbers_of(causes) if n not in formats or v != expected]
    for i, (name, value) in enumerate(found):
        assert not isclose(value, expected, rel_tol=CLOSE), name
        for other, of_other in found[:i]:
            assert name == other or not isclose(value, of_other, rel_tol=CLOSE), (name, other)


def test_products_stand_on_both_sides_of_the_ridge_and_on_it():
    bounds = {(p.num_tokens > 1, exact(p)["bound"]) for p in PRODUCTS}
    assert len(bounds) == 4, "prefill and decode, memory and compute"
    assert any(exact(p)["intensity"] * p.bandwidth == p.peak for p in PRODUCTS)
    for p in PRODUCTS:
        found = exact(p)
        assert found["flops_per_s"] == min(p.peak, found["intensity"] * p.bandwidth)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_the_least_number_of_rows_is_where_the_bound_changes(weight):
    inputs, outputs, number_bytes, peak, bandwidth = weight
    rows = least_rows(*weight)
    if rows is None:
        limit = 2 * inputs * outputs / (number_bytes * (inputs + outputs))
        assert limit <= peak / bandwidth
        return
    product = type(PRODUCTS[0])
    told = dict(num_tokens=1, inputs=inputs, outputs=outputs, number_bytes=number_bytes)
    bounds = [
        exact(product(batch_size=n, peak=peak, bandwidth=bandwidth, **told))["bound"]
        for n in (rows - 1, rows)
        if n
    ]
    assert bounds == ["memory", "compute"][-len(bounds) :]


def test_budgets_are_tight_loose_and_impossible():
    least = [fewest_again(*case) for case in cases()]
    assert 0 in least
    assert None in least
    assert len(set(least)) > 6
    assert any(len(set(layers)) > 1 for layers, _, _ in cases())


@pytest.mark.parametrize("case", [*RUNS, *SUSPECTS], ids=str)
def test_a_run_by_plan_holds_what_the_model_of_its_memory_says(case):
    plan, plain = planned(case), run_plainly(case)
    layers = [LAYER_BYTES] * case.num_layers
    assert plan["kept"] == held(case.lengths, layers, BOUNDARY_BYTES)[-1]
    assert plain["kept"] == case.num_layers * LAYER_BYTES
    assert plan["again"] == again_by(case.lengths)
    if len(case.lengths) > 1 and case.num_layers > 3:
        assert plan["peak"] + SLACK_BYTES < plain["peak"] - LAYER_BYTES / 2
    assert all(gradient.abs().max() > 1e-3 for gradient in plain["gradients"])


def test_the_hunted_bug_cannot_be_seen_where_segments_do_not_come_out_even(monkeypatch):
    bug = next(
        s
        for s in read_bank(ROOT / "tests" / "mutants")
        if (s.exercise, s.name) == ("lab01.suspect", "as_it_was")
    )
    uneven = tuple(case for case in SUSPECTS if case.num_layers % case.told)
    assert len(uneven) == 2
    monkeypatch.setattr(lab01_run, "SUSPECTS", uneven)
    assert try_solution(bug).passed


@pytest.mark.parametrize("one", SETS, ids=str)
def test_a_law_can_be_found_from_its_records(one):
    got = fit(one.records).loss(one.size, one.tokens)
    assert isclose(got, one.law.loss(one.size, one.tokens), rel_tol=LAW_CLOSE)
    largest = max(n for n, _, _ in one.records)
    assert one.size > largest


def test_the_records_are_those_that_were_measured():
    found = json.loads(SCALING.read_text())["result"]
    names = ("non_embedding_parameters", "tokens", "bits_per_byte")
    measured = [tuple(row[name] for name in names) for row in found["records"]]
    assert list(RECORDS) == [(n, d, round(loss, 4)) for n, d, loss in measured]
    assert tuple(found["target"][name] for name in names) == MINI
    assert isclose(fit(RECORDS).loss(*MINI[:2]), MINI[2], rel_tol=MINI_CLOSE)
    told = re.search(r"^RECORDS = \[\n(.*?)^\]", MASTER.read_text(), re.MULTILINE | re.DOTALL)
    assert told is not None
    assert tuple(eval(f"[{told[1]}]")) == RECORDS
    assert all(n < MINI[0] for n, _, _ in RECORDS)


def test_every_key_that_is_put_together_has_a_text():
    """Keys in f-strings, which the catalogue's own test cannot read."""
    keys = {"num_parameters": parameter_causes(FIRST), "forward_flops": flop_causes(FIRST)}
    keys |= {"activation_bytes": activation_causes(FIRST), "kv_bytes": cache_causes(FIRST, 1)}
    keys |= {"state_gib": state_causes(FIRST)}
    wanted = {f"lab01.{name}.{cause}" for name, causes in keys.items() for cause in causes}
    wanted |= {f"lab01.{name}.values" for name in keys}
    shared = ("changed", "first", "second_run", "result", "no_gradient", "gradient", "never")
    shared += ("often", "last", "again", "kept", "peak")
    wanted |= {f"lab01.{name}.{end}" for name in ("run_segments", "suspect") for end in shared}
    ends = ("size_alone", "text_alone", "constant", "rises", "negative", "no_floor", "values")
    wanted |= {f"lab01.predict_loss.{end}" for end in (*ends, "records")}
    ends = ("never", "one_less", "one_more", "weight_alone", "elements", "no_output", "values")
    wanted |= {f"lab01.rows_needed.{end}" for end in ends}
    roofline = {
        "moved_bytes": (
            *("no_output", "weight_alone", "activations_alone", "output_twice", "bits"),
            *("elements", "weight_a_sequence", "no_batch", "two_bytes", "values"),
        ),
        "intensity": ("inverted", "half", "numbers", "no_batch", "values"),
        "flops_per_s": ("smaller_alone", "peak_alone", "bandwidth", "inverted", "values"),
    }
    wanted |= {f"lab01.roofline.{part}.{end}" for part, ends in roofline.items() for end in ends}
    assert wanted <= set(entries("lab01"))


def test_no_answer_is_longer_than_its_text_says():
    cells = re.findall(
        r"^:exercise: lab01\.(\w+)$(.*?)^```$", MASTER.read_text(), re.MULTILINE | re.DOTALL
    )
    assert {f"lab01.{name}" for name, _ in cells} == {exercise.id for exercise in EXERCISES}
    for name, text in cells:
        parts = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", text, re.DOTALL)
        own = sum(part.strip().count("\n") + 1 for part in parts)
        assert own <= 15, f"{name}: {own} lines"
