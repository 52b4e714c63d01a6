"""Lab 07: what the bank of wrong solutions cannot show about its checks.

Promised: the oracle is the library's layer; the bytes asked for are those that the library's own
expert parallelism sends; the cases cover what the lab says; the hunted bug cannot be seen without a
ledger; no answer is longer than its text says. Oracle: labkit.model.moe, the whole batch at once,
the files themselves.
"""

import re
from pathlib import Path

import pytest
import torch

from labkit.grade import lab07_moe
from labkit.grade.bank import read_bank, try_solution
from labkit.grade.catalogue import entries
from labkit.grade.lab07 import EXERCISES
from labkit.grade.lab07_capacity import SIZES as CAPACITIES
from labkit.grade.lab07_moe import WORLDS, copies, serial
from labkit.grade.lab07_ranks import WIDTH, Case, Expert, Layout, data_of
from labkit.grade.lab07_router import cases, chosen, loss_of
from labkit.grade.lab07_sync import WORLDS as LAYOUTS
from labkit.grade.lab07_sync import gradients, rank_loss
from labkit.model.moe import MoE, Routing, auxiliary_loss

ROOT = Path(__file__).parents[2]
MASTER = ROOT / "labs" / "masters" / "lab07_experts.md"
ALL_CASES = [case for _, of_world in WORLDS for case in of_world]
ALL_LAYOUTS = [layout for _, of_world in LAYOUTS for layout in of_world]


@pytest.mark.parametrize("number", range(len(cases())))
def test_the_router_is_the_librarys(number):
    logits, bias, grad = cases()[number]
    E, k = logits.shape[1], grad.shape[1]
    layer = MoE(hidden_size=E, intermediate_size=1, num_experts=E, top_k=k, balancing=True).double()
    with torch.no_grad():
        layer.router.weight.copy_(torch.eye(E))  # the input is the logits
        layer.bias.copy_(bias)
        routing = layer.choose(logits)
    scores = logits.softmax(-1)
    wanted = chosen(scores + layer.bias, scores, k)
    torch.testing.assert_close(wanted.gather(1, routing.indices), routing.weights)
    torch.testing.assert_close(
        loss_of(scores, wanted > 0), auxiliary_loss(routing), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("case", ALL_CASES, ids=str)
def test_the_serial_layer_is_the_librarys(case):
    layer = MoE(hidden_size=WIDTH, intermediate_size=1, num_experts=case.num_experts, top_k=case.k)
    layer.experts = torch.nn.ModuleList(Expert(number) for number in range(case.num_experts))
    ys, *_, expert_grads = serial(case)
    for place, y in enumerate(ys):
        x, indices, weights, grad = data_of(case, place)
        out = layer.mix(x, Routing(indices=indices, weights=weights, scores=x, logits=x))
        torch.testing.assert_close(out, y, atol=1e-12, rtol=0)
        out.backward(grad)
    for expert, gradient in zip(layer.experts, expert_grads, strict=True):
        torch.testing.assert_close(expert.matrix.grad, gradient, atol=1e-12, rtol=0)


def test_the_cases_cover_what_the_lab_promises():
    assert {len(case.members) for case in ALL_CASES} == {1, 2, 4}
    assert {case.k for case in ALL_CASES} == {1, 2, 3}
    assert any(0 in case.tokens for case in ALL_CASES)
    assert any(case.members == (1, 3) for case in ALL_CASES), "places are not ranks there"
    to_one = next(case for case in ALL_CASES if case.told == "all to one rank")
    assert [copies(to_one, place)[0] for place in range(2)] == [0, 0]
    empty = next(case for case in ALL_CASES if case.told == "empty experts")
    assert not {1, 4} & set(data_of(empty, 0)[1].flatten().tolist())
    assert {(layout.dp, layout.ep) for layout in ALL_LAYOUTS} == {(2, 2), (3, 1), (1, 2), (1, 1)}
    assert {0, 9} <= {capacity for *_, capacity in CAPACITIES}


@pytest.mark.parametrize("layout", ALL_LAYOUTS, ids=str)
def test_what_ranks_start_with_adds_up_to_the_mean(layout: Layout):
    before, after = gradients(layout)
    N, ep = layout.dp * layout.ep, layout.ep
    experts = [Expert(number) for number in range(2 * ep)]
    dense = torch.linspace(0.5, 1.5, WIDTH, dtype=torch.float64).requires_grad_()
    (sum(rank_loss(place, dense, experts) for place in range(N)) / N).backward()
    for place in range(N):
        torch.testing.assert_close(after[place]["dense"][0], dense.grad)
        for index, got in enumerate(after[place]["experts"]):
            torch.testing.assert_close(got, experts[2 * (place % ep) + index].matrix.grad)
            same = [before[other]["experts"][index] for other in range(place % ep, N, ep)]
            torch.testing.assert_close(torch.stack(same).sum(0) / N, got)


def test_the_hunted_bug_cannot_be_seen_without_a_ledger(monkeypatch):
    bug = next(
        s
        for s in read_bank(ROOT / "tests" / "mutants")
        if (s.exercise, s.name) == ("lab07.suspect", "as_it_was")
    )
    monkeypatch.setattr(lab07_moe, "_judge_bytes", lambda *_: None)
    monkeypatch.setattr(lab07_moe, "WORLDS", WORLDS[:1])
    assert try_solution(bug).passed


def test_every_key_that_is_put_together_has_a_text():
    """Keys in f-strings, which the catalogue's own test cannot read."""
    layer = ("input", "values", "order", "slots", "unweighted", "first_only", "mean", "again")
    layer += ("detached", "x_gradient", "weights_gradient", "expert_gradient", "expert_divided")
    layer += ("other_group", "gathered", "padded", "bytes", "counts")
    keys = [f"{exercise}.{key}" for exercise in ("moe", "suspect") for key in layer]
    ends = ("local", "over_dp", "over_ep", "sum", "mixed", "divided", "values")
    keys += [f"sync_gradients.{kind}_{end}" for kind in ("dense", "experts") for end in ends]
    ends = ("axis", "bias_in_weights", "not_shared", "no_bias", "logits", "away", "choice")
    ends += ("weights", "loss_experts", "loss_choices", "loss")
    keys += [f"route.{end}" for end in ends]
    assert {f"lab07.{key}" for key in keys} <= set(entries("lab07"))


def test_the_width_is_seen_in_the_bytes():
    case = Case(told="random", members=(0, 1), tokens=(5, 3), num_experts=4, k=2)
    assert sum(copies(case, 0)) == 5 * 2
    assert WIDTH not in (1, 2, 4), "a width that no count of ranks or choices equals"


def test_no_answer_is_longer_than_its_text_says():
    cells = re.findall(
        r"^:exercise: lab07\.(\w+)$(.*?)^```$", MASTER.read_text(), re.MULTILINE | re.DOTALL
    )
    assert {f"lab07.{name}" for name, _ in cells} == {exercise.id for exercise in EXERCISES}
    for name, text in cells:
        (answer,) = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", text, re.DOTALL)
        lines = [line for line in answer.splitlines() if line.strip()]
        assert len(lines) <= 15, f"{name}: {len(lines)} lines"
