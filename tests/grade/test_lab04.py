"""Lab 04: what the bank of wrong solutions cannot show about its checks.

Promised: the meter sees storages and not names, whoever holds them, and lets go of what is gone;
oracles are AdamW and torch's own clipping; the mistakes that are hunted are far larger than the
tolerance; causes fit; bug-hunt cells hold the bank's text; answers are as short as the lab says.
Oracle: hand-made values, torch itself, the files.
"""

import re
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit.grade import lab04_checkpoint, lab04_clip
from labkit.grade.catalogue import entries
from labkit.grade.lab04 import EXERCISES
from labkit.grade.lab04_layer_ranks import LayerCase, inputs_of, layers_of
from labkit.grade.lab04_layers import LAYERS
from labkit.grade.lab04_layers import _serial as serial_layers
from labkit.grade.lab04_meter import Meter, Optimizers, storage_bytes
from labkit.grade.lab04_ranks import SETTINGS, Case, draw, gradients, telling
from labkit.grade.lab04_weights import (
    CLOSE,
    _mean,
    _own,
    _sum,
    computed,
    given,
    serial,
)
from labkit.grade.lab04_weights import (
    likeliest_cause as cause_of,
)
from labkit.grade.lab04_zero import BACKWARD, STEP_ONLY
from labkit.grade.notebook import PRISTINE, read_notebook
from labkit.grade.release import without_docstring

ROOT = Path(__file__).parents[2]
MASTER = ROOT / "labs" / "masters" / "lab04_sharding.md"
ALL = [case for worlds in (STEP_ONLY, BACKWARD, LAYERS) for row in worlds.values() for case in row]
CASE = Case(members=(0, 1, 2), shapes=((3,), (1,), (2,), (7,)))
ROWS = Case(members=(0, 1, 2), shapes=((6,),), num_micro_batches=2)


def numbers(*shape):
    return torch.ones(shape, dtype=torch.float64)


def test_a_slice_counts_as_what_it_keeps_alive():
    with Meter() as meter:
        part = numbers(100)[:2]
    assert meter.live_bytes(0) == 800
    part = part.clone()
    del part
    assert meter.live_bytes(0) == 0


def test_what_autograd_holds_counts_until_backward():
    x = numbers(4, 4).requires_grad_()
    with Meter() as meter:
        y = (x @ (numbers(4, 4) * 2)).sum()  # a weight that nobody names
    held = meter.live_bytes(0)
    with meter:
        y.backward()
    assert held == 128
    assert meter.live_bytes(0, but=[x.grad]) == 0


def test_an_emptied_storage_counts_nothing():
    with Meter() as meter:
        flat = numbers(50)
        view = flat[3:]
    flat.untyped_storage().resize_(0)
    assert meter.live_bytes(0) == 0
    assert view.shape == (47,)


def test_other_types_single_numbers_and_named_tensors_are_left_out():
    with Meter(patience_s=0.0) as meter:
        kept = numbers(10), torch.ones(10), torch.ones((), dtype=torch.float64)
        named = numbers(30)
    assert meter.live_bytes(0, but=[named]) == storage_bytes([kept[0]]) == 80


def test_whole_layers_are_counted_at_their_most():
    layers = [nn.Linear(4, 4, dtype=torch.float64) for _ in range(5)]
    meter = Meter(layers=layers)
    with meter:
        numbers(1) + 1
    assert meter.most_layers == 5
    for layer in layers[2:]:
        for parameter in layer.parameters():
            parameter.untyped_storage().resize_(0)
    meter.most_layers = 0
    with meter:
        numbers(1) + 1
    assert meter.most_layers == 2


def test_a_weight_that_the_graph_holds_is_still_whole():
    (layer,) = layers_of(LayerCase(members=(0,), shapes=((4, 4),)))
    meter = Meter(layers=[layer])
    with meter:
        y = layer(numbers(2, 4))
        for parameter in layer.parameters():
            parameter.data = parameter.data.new_empty(0)
        meter.most_layers = 0
        y * 2  # an operation, at which the meter looks; the bias is gone, the weight is not
    assert meter.live_bytes(0) >= 4 * 4 * 8


def test_gradients_are_counted_at_their_most():
    first, second = (numbers(n).requires_grad_() for n in (3, 5))

    def leave(parameter):
        parameter.grad * 2  # an operation, at which the meter looks
        parameter.grad = None

    second.register_post_accumulate_grad_hook(leave)
    with Meter([first, second]) as meter:
        (first.sum() * second.sum()).backward()
        numbers(1) + 1
    assert 40 <= meter.most_gradient_bytes <= 64
    assert second.grad is None


def test_the_optimizers_state_is_found_while_it_lives():
    make = Optimizers(**SETTINGS)
    shard = numbers(6)
    optimizer = make([shard])
    shard.grad = numbers(6)
    optimizer.step()
    assert storage_bytes(make.state()) == 2 * 48
    del optimizer
    assert make.state() == []


@pytest.mark.parametrize("case", ALL, ids=str)
def test_ranks_steps_and_first_weights_differ(case):
    if isinstance(case, LayerCase):
        rows = [inputs_of(case, s, m, r) for s in (0, 1) for m in (0, 1) for r in case.members]
        again = inputs_of(case, 0, 0, case.members[0])
    else:
        rows = [draw(case)[0], *(draw(case, s, r)[0] for s in (0, 1) for r in case.members)]
        again = draw(case)[0]
    assert torch.equal(rows[0], again)
    assert len({tuple(row.flatten().tolist()) for row in rows}) == len(rows)


def test_the_cases_cover_what_the_lab_promises():
    for worlds in (STEP_ONLY, BACKWARD, LAYERS):
        cases = [case for row in worlds.values() for case in row]
        sizes = {len(case.members) for case in cases}
        assert {1, 4} <= sizes
        assert sizes & {2, 3}
        assert any(case.num_steps == 5 for case in cases)
        assert any(case.members[0] > 0 and len(case.members) > 1 for case in cases)
        assert any(sum(case.lengths) % len(case.members) for case in cases)
    assert any(case.unused >= 0 for row in STEP_ONLY.values() for case in row)
    assert any(case.shapes == ((5,),) for case in STEP_ONLY[4])  # the last of 4 owns padding only


def test_a_share_is_the_part_and_its_padding():
    assert CASE.share_bytes == 8 * (1 + 1 + 1 + 3)
    assert LayerCase(members=(0, 1), shapes=((4, 4),)).share_bytes == 8 * (8 + 2)


def test_the_oracle_is_adamw():
    """One step by hand: m̂ = g and v̂ = g² at first."""
    (weights,) = serial(Case(members=(0, 1), shapes=((3, 2),), num_steps=1), given, _mean)
    case = Case(members=(0, 1), shapes=((3, 2),), num_steps=1)
    w, g = draw(case)[0], (gradients(case, 0, 0)[0] + gradients(case, 0, 1)[0]) / 2
    lr, eps = SETTINGS["lr"], SETTINGS["eps"]
    by_hand = w * (1 - lr * SETTINGS["weight_decay"]) - lr * g / (g.abs() + eps)
    assert torch.allclose(weights, by_hand.flatten(), atol=1e-14, rtol=0)


@pytest.mark.parametrize("case", [CASE, ROWS], ids=str)
@pytest.mark.parametrize("combine", [_sum, _own, partial(_own, by_parameter=True)])
def test_a_hunted_mistake_is_far_above_the_tolerance(case, combine):
    for of_rank in (given, computed):
        right, wrong = (serial(case, of_rank, c)[0] for c in (_mean, combine))
        assert (right - wrong).abs().max() > 100 * CLOSE


@pytest.mark.parametrize("case", [case for row in LAYERS.values() for case in row], ids=str)
def test_layers_trained_on_sums_are_far_away(case):
    right, summed = (serial_layers(case, scale)[-1] for scale in (1 / len(case.members), 1.0))
    gap = max((x - y).abs().max() for (x, _), (y, _) in zip(right, summed, strict=True))
    assert gap > 100 * CLOSE or len(case.members) == 1


@pytest.mark.parametrize(
    ("cause", "case", "got"),
    [
        ("unchanged", CASE, lambda c: torch.cat([w.flatten() for w in draw(c)])),
        ("mean", CASE, lambda c: serial(c, given, _sum)[0]),
        ("local", CASE, lambda c: serial(c, given, _own)[0]),
        ("order", CASE, lambda c: serial(c, given, _mean)[0].roll(2)),
        ("tail", CASE, lambda c: torch.cat([serial(c, given, _mean)[0][:12], numbers(1)])),
        ("values", CASE, lambda c: numbers(13)),
    ],
)
def test_wrong_weights_have_theircause_of(cause, case, got):
    weights = [[got(case)] * 2] * 3
    assert cause_of(case, weights, 0, 1, given, serial(case, given, _mean)[0]) == cause
    assert cause_of(case, weights, 1, 1, given, serial(case, given, _mean)[1]) == "state"


def test_weights_of_the_last_micro_batch_and_different_ranks_have_theircause_of():
    right = serial(ROWS, computed, _mean)[0]
    last = serial(ROWS, partial(computed, first=1), _mean)[0]
    assert cause_of(ROWS, [[last]] * 3, 0, 0, computed, right) == "overwritten"
    assert cause_of(ROWS, [[last], [right], [last]], 0, 0, computed, right) == "apart"


@pytest.mark.parametrize("case", [c for row in lab04_clip.CASES.values() for c in row], ids=str)
def test_the_norm_is_torchs_and_shards_are_the_gradient(case):
    flat, others = case.gradients()
    leaves = [nn.Parameter(torch.zeros_like(g)) for g in (flat, *others)]
    for leaf, gradient in zip(leaves, (flat, *others), strict=True):
        leaf.grad = gradient.clone()
    norm = nn.utils.clip_grad_norm_(leaves, case.max_norm)
    assert float(norm) == pytest.approx(case.norm, rel=1e-12)
    own = [case.shard(p)[: case.num_own(p)] for p in range(len(case.members))]
    assert torch.equal(torch.cat(own), flat)
    beyond = [case.shard(p)[case.num_own(p) :] for p in range(len(case.members))]
    assert bool((torch.cat(beyond) == lab04_clip.PADDING).all())
    parts, rest = case.squares()
    assert sum(parts) + rest == pytest.approx(case.norm**2, rel=1e-12)


def test_dropout_drops_something_and_runs_are_counted():
    for case in lab04_checkpoint.CASES:
        (layer, *_), (x, gradient) = case.layers(), case.tensors()
        torch.manual_seed(case.width)
        layer(x).backward(gradient)
        other = lab04_checkpoint.Block(case.width, 0.0, torch.Generator().manual_seed(case.width))
        other(x).backward(gradient)
        assert layer.runs == 1
        assert torch.equal(layer.down.grad, other.down.grad) == (case.dropout == 0.0)


def test_an_error_tells_its_case_and_a_stub_stays_a_stub():
    with pytest.raises(IndexError, match=r"3 of 2 \(with a case\)"), telling("a case"):
        raise IndexError("3 of 2")
    with pytest.raises(NotImplementedError, match=r"^lab04\.zero1$"), telling("a case"):
        raise NotImplementedError("lab04.zero1")


def test_every_key_that_is_put_together_has_a_text():
    """Keys in f-strings and arguments, which the catalogue's own test cannot read."""
    zero = "unchanged apart mean local overwritten tail order values state reduced traffic"
    zero += " optimizer_bytes kept_bytes"
    layers = "output mean trained state input_gradient after_init after_forward after_backward"
    layers += " after_step alive sent_forward sent_backward sent_step"
    clip = "norm padding local counted roots left_out squared raised not_scaled own_factor"
    clip += " gradients traffic"
    again = "output gradients input_gradient no_gradients no_input_gradient doubled dropout"
    rooms = {"zero": zero, "zero2": "whole between at_once", "zero3": layers}
    rooms |= {"clip_grad_norm": clip, "checkpoint": again}
    wanted = {f"lab04.{room}.{key}" for room, keys in rooms.items() for key in keys.split()}
    assert wanted <= set(entries("lab04"))


def test_the_bug_hunt_shows_the_banks_text():
    notebook = read_notebook(PRISTINE / "lab04_sharding.ipynb")
    (cell,) = [c for c in notebook.cells if c.metadata.get("exercise") == "lab04.suspect"]
    bank = ROOT / "tests" / "mutants" / "lab04" / "suspect" / "as_it_was.py"
    assert cell.source == without_docstring(bank)


def test_answers_are_as_short_as_the_lab_says():
    answers = dict(
        re.findall(
            r"^:exercise: (lab04\.\w+)$(.*?)^```$", MASTER.read_text(), re.MULTILINE | re.DOTALL
        )
    )
    assert set(answers) == {exercise.id for exercise in EXERCISES}
    most = {"lab04.zero3": 40, "lab04.clip_grad_norm": 10, "lab04.suspect": 30}
    for name, text in answers.items():
        parts = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", text, re.DOTALL)
        own = sum(part.strip().count("\n") + 1 for part in parts)
        assert own <= most.get(name, 15), f"{name}: {own} lines"
