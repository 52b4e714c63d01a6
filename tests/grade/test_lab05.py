"""Lab 05: what the bank of wrong solutions cannot show about its checks.

Promised: the serial layers are those of torch and labkit.model; every rank gets its slice, padding
and replicas included; trials cover what the lab promises; what a rank tells is true; a wrong sum is
named; the serial program on every rank is refused; the bug hunt holds the bank's text and hides no
answer; no answer needs more than 15 lines. Oracle: torch, labkit.model, hand-made values, files.
"""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import linear

from labkit.cost.collectives import all_reduce_bytes_sent
from labkit.grade.answers import whole as as_piece
from labkit.grade.catalogue import entries
from labkit.grade.check import CheckFailed
from labkit.grade.lab05 import EXERCISES
from labkit.grade.lab05_attention import _trials as attention_trials
from labkit.grade.lab05_attention import attention
from labkit.grade.lab05_layer import _relation, judge_records
from labkit.grade.lab05_linear import _linear_trials, _mlp_trials, gated, mlp_wholes
from labkit.grade.lab05_ranks import Part, Trial, run_layers
from labkit.grade.lab05_seen import Seen, no_cause
from labkit.grade.lab05_sequence import _trials as sequence_trials
from labkit.grade.lab05_vocab import (
    IGNORED,
    LOSSES,
    PADDING_LOGIT,
    _embedding_trials,
    _loss_trial,
    likely_losses,
)
from labkit.grade.lab05_whole import cut, draw, serial
from labkit.grade.notebook import PRISTINE, read_notebook
from labkit.grade.release import without_docstring
from labkit.launch import run_ranks
from labkit.model.attention import Attention
from labkit.model.config import ModelConfig
from labkit.model.layers import SwiGLU

ROOT = Path(__file__).parents[2]
MASTER = ROOT / "labs" / "masters" / "lab05_tensor_parallel.md"
FLOAT64 = {"dtype": torch.float64}
CASES = {
    "column": _linear_trials(by_rows=False),
    "row": _linear_trials(by_rows=True),
    "mlp": _mlp_trials(with_norm=False),
    "suspect": _mlp_trials(with_norm=True),
    "attention": attention_trials(),
    "hidden": _embedding_trials(dim=1),
    "vocab": _embedding_trials(dim=0),
    "loss": [_loss_trial(number, *sizes) for number, sizes in enumerate(LOSSES)],
    "sequence": sequence_trials(),
}
TRIALS = [(name, trial) for name, cases in CASES.items() for trial, _ in cases]


def config(D, F, heads, kv_heads, d):
    sizes = {"hidden_size": D, "intermediate_size": F, "head_dim": d, "vocab_size": 9}
    counts = {"num_layers": 1, "num_heads": heads, "num_kv_heads": kv_heads, "max_seq_len": 9}
    return ModelConfig(**sizes, **counts)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
def test_the_serial_attention_is_the_models(heads, kv_heads):
    layer = Attention(config(10, 4, heads, kv_heads, 4), layer=0).double()
    x = draw(1, (2, 5, 10))[0]
    unturned = torch.ones(1, 1, 5, 2, **FLOAT64), torch.zeros(1, 1, 5, 2, **FLOAT64)
    weights = [getattr(layer, f"{name}_proj").weight for name in "qkvo"]
    torch.testing.assert_close(attention(x, *weights, 4), layer(x, *unturned), rtol=0, atol=1e-12)


def test_the_serial_mlp_is_the_models():
    mlp = SwiGLU(6, 10).double()
    x = draw(2, (2, 3, 6))[0]
    weights = mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight
    torch.testing.assert_close(gated(x, *weights), mlp(x), rtol=0, atol=1e-12)


def test_slices_of_all_ranks_make_the_whole():
    trial = Trial(world_size=4, tp=4, told="", parts=(), replicas=2)
    x = torch.arange(14.0).view(7, 2)
    rows = [cut(x, 0, 4, trial, rank) for rank in range(4)]
    assert torch.equal(torch.cat(rows), torch.cat([x, torch.zeros(1, 2)]))
    shared = [cut(x[:6], 0, 2, trial, rank) for rank in range(4)]
    assert torch.equal(shared[0], x[:3])
    assert torch.equal(shared[1], shared[0])
    assert torch.equal(shared[2], x[3:6])
    assert trial.sharers(3) == (2, 3)
    halves = replace(trial, tp=2, replicas=1)
    assert [halves.members(rank) for rank in (1, 2)] == [(1, 3), (0, 2)]
    assert [halves.place(rank) for rank in range(4)] == [0, 0, 1, 1]


def test_the_trials_cover_what_the_lab_promises():
    for name, cases in CASES.items():
        worlds = {(trial.world_size, trial.tp) for trial, _ in cases}
        assert {(2, 2), (4, 4), (4, 2), (4, 1)} <= worlds, name
        assert cases[0][0].world_size == 2
    notes = {name: " ".join(trial.told for trial, _ in cases) for name, cases in CASES.items()}
    assert "259 words" in notes["loss"]
    assert "of 259 words" in notes["vocab"]
    assert "8 query and 2 KV heads" in notes["attention"]
    assert "matrix [4, 4]" in notes["column"]  # square beside non-square
    strided = {name for name, trial in TRIALS if trial.strided}
    assert strided == set(CASES) - {"hidden", "vocab"}


@pytest.mark.parametrize(("name", "trial"), TRIALS)
def test_groups_differ_and_ranks_of_a_group_agree(name, trial):
    for rank, part in enumerate(trial.parts):
        first = trial.parts[trial.members(rank)[0]]
        pairs = zip(part.whole, first.whole, strict=True)
        assert all(a is b or torch.equal(a, b) for a, b in pairs if a is not None)
    if 1 < trial.tp < trial.world_size:
        assert not torch.equal(trial.parts[0].inputs[0], trial.parts[1].inputs[0])


def test_padding_is_above_the_logits_and_some_labels_are_ignored():
    for number, (trial, _) in enumerate(CASES["loss"]):
        logits, labels = trial.parts[-1].inputs
        assert bool((labels == IGNORED).any()) == bool(number)
        real = logits[logits != PADDING_LOGIT]
        normal = real[real < 100]
        assert normal.numel() == 0 or normal.max() < PADDING_LOGIT
        assert bool((real > 709).any()) == bool(number and real.numel())


def seen_of(trial, wants, rank, got):
    return Seen(
        trial=trial, rank=rank, want=wants[rank], got=got, group=(got,), wants=(wants[rank],)
    )


def test_likely_losses_are_wrong_and_the_right_one_is_none_of_them():
    for trial, wants in CASES["loss"][1:3]:
        likely = likely_losses(seen_of(trial, wants, 0, {}))
        gaps = [float((loss - wants[0].output).abs()) for loss in likely.values()]
        assert min(gaps) > 1e-10, likely  # 100 times the tolerance


@pytest.mark.parametrize(
    ("relation", "of_ranks"),
    [
        ("_part", ([1.0, 5.0], [2.0, 2.0])),
        ("_times", ([6.0, 14.0], [6.0, 14.0])),
        ("_divided", ([1.5, 3.5], [1.5, 3.5])),
        ("", ([1.0, 1.0], [1.0, 1.0])),
    ],
)
def test_a_wrong_sum_is_named(relation, of_ranks):
    group = [torch.tensor(x, **FLOAT64) for x in of_ranks]
    assert _relation(group[0], torch.tensor([3.0, 7.0], **FLOAT64), group, 2) == relation


class Plain(nn.Module):
    """The serial layer, in a group of one: right, whatever is kept."""

    def __init__(self, weight, bias, group):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, x):
        return linear(x, self.weight, self.bias)


def plain_trial():
    whole = serial_linear()
    y, dx, _ = serial(whole)
    part = Part(whole=tuple(whole.tensors.values()), inputs=(whole.x,), grad=whole.grad)
    return Trial(world_size=1, tp=1, told="alone", parts=(part,)), y, dx


def serial_linear():
    weight, bias, x, grad = draw(3, (5, 3), (5,), (2, 4, 3), (2, 4, 5))
    made = mlp_wholes(3, 1, (2, 4, 3), 5, False)[0]
    tensors = {"weight": weight, "bias": bias}
    return replace(made, function=linear, x=x, grad=grad, tensors=tensors, dims={})


def test_what_a_rank_tells_of_a_layer():
    trial, y, dx = plain_trial()
    (records,) = run_ranks(run_layers, 1, Plain, [trial], device="cpu", debug=False)
    seen = records[0]
    torch.testing.assert_close(seen["output"], y, rtol=0, atol=1e-12)
    torch.testing.assert_close(seen["input_grads"][0], dx, rtol=0, atol=1e-12)
    assert torch.equal(seen["output"], seen["again"])
    assert seen["held_bytes"] == 8 * (15 + 5)
    assert seen["alive"] == [True, True]  # the parameters are the given tensors
    assert (seen["forward"], seen["backward"], seen["unwaited"]) == ([], [], [])


def test_the_serial_program_on_every_rank_is_refused():
    """Right numbers and no communication: only the bytes held tell."""
    trial, wants = CASES["row"][0]
    whole = [dict(zip(wants[0].shards, part.whole, strict=True)) for part in trial.parts]
    grads = {name: torch.zeros_like(x) for name, x in whole[0].items()}
    record = {"parameters": whole[0], "grads": grads, "forward": [], "backward": [], "unwaited": []}
    with pytest.raises(CheckFailed) as refused:
        judge_records([[record], [record]], [(trial, wants)], no_cause)
    assert refused.value.key == "lab05.layer.shard_whole"


def test_the_number_to_predict():
    """2 · 8 · 64 values of 4 bytes, all-reduced once forward and once backward on four ranks."""
    assert 2 * all_reduce_bytes_sent(4 * 2 * 8 * 64, 4) == 12_288


def test_every_key_that_is_put_together_has_a_text():
    """Keys in f-strings and returned by causes, which the catalogue's own test cannot read."""
    tensors = ("output", "input_grad", "weight_grad")
    relations = ("", "_part", "_times", "_divided")
    wanted = {f"lab05.layer.{tensor}{relation}" for tensor in tensors for relation in relations}
    trial, wants = CASES["loss"][1]
    wanted |= {f"lab05.split_loss.{key}" for key in likely_losses(seen_of(trial, wants, 0, {}))}
    wanted |= {f"lab05.vocab_embedding.{key}" for key in ("edge", "mask")}
    for path in (ROOT / "labkit" / "grade").glob("lab05_*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        texts = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        wanted |= {text for text in texts if re.fullmatch(r"lab05\.\w+\.\w+", text)}
    assert wanted <= set(entries("lab05"))
    assert len(wanted) > 60


def cells():
    notebook = read_notebook(PRISTINE / "lab05_tensor_parallel.ipynb")
    return {c.metadata["exercise"]: c.source for c in notebook.cells if "exercise" in c.metadata}


def test_the_bug_hunt_shows_the_banks_text_and_hides_no_answer():
    shown = cells()
    bug = shown.pop("lab05.suspect")
    assert bug == without_docstring(ROOT / "tests/mutants/lab05/suspect/as_it_was.py")
    answers = {name for text in shown.values() for name in as_piece(text).binds}
    assert {"copy_to", "reduce_from", "ColumnLinear", "split_loss"} <= answers
    assert not as_piece(bug).binds & answers


def test_no_answer_needs_more_than_fifteen_lines():
    pattern = r"^:exercise: lab05\.(\w+)$(.*?)^```$"
    answers = dict(re.findall(pattern, MASTER.read_text(), re.MULTILINE | re.DOTALL))
    assert {f"lab05.{name}" for name in answers} == {exercise.id for exercise in EXERCISES}
    for name, text in answers.items():
        parts = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", text, re.DOTALL)
        own = sum(part.strip().count("\n") + 1 for part in parts)
        assert own <= 15, f"{name}: {own} lines"
