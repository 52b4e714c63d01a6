"""Lab 02: what the bank of wrong solutions cannot show about its checks.

Promised: inputs differ from rank to rank, laid out as said; a rank reports shared memory, a changed
input and a sleep wherever it is named; a wrong result gets the cause that it has; prices are
judged by replays that equal the closed forms; bug-hunt cells hold the bank's texts; no answer needs
more than 15 lines. Oracle: hand-made values, labkit.cost, the files themselves.
"""

import re
import time
from pathlib import Path
from time import sleep as nap

import pytest
import torch

from labkit.cost import collectives as cost
from labkit.grade.catalogue import entries
from labkit.grade.lab02 import EXERCISES
from labkit.grade.lab02_price import LENGTHS, LINKS, SIZES, _replayed
from labkit.grade.lab02_ranks import Case, _named, draw, lay_out, watch
from labkit.grade.lab02_ring import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, WORLDS, _cause
from labkit.grade.notebook import PRISTINE, read_notebook
from labkit.grade.release import without_docstring

ROOT = Path(__file__).parents[2]
MASTER = ROOT / "labs" / "masters" / "lab02_collectives.md"
BUGS = ("suspect", "swap", "mean_loss", "grid_sums")
CASE = Case(members=(0, 1, 2), shape=(7,))
PARTS = [draw(CASE, rank) for rank in CASE.members]
TOTAL = sum(PARTS)


@pytest.mark.parametrize("case", [case for cases in WORLDS.values() for case in cases], ids=str)
def test_every_rank_has_numbers_of_its_own_laid_out_as_said(case):
    parts = [draw(case, rank) for rank in case.members]
    assert all(
        torch.equal(x, draw(case, rank)) for x, rank in zip(parts, case.members, strict=True)
    )
    if parts[0].numel():
        assert len({tuple(part.flatten().tolist()) for part in parts}) == len(parts)
    laid = lay_out(parts[0], case.strided)
    assert torch.equal(laid, parts[0])
    assert laid.dtype == case.dtype
    assert laid.is_contiguous() != case.strided


def test_the_cases_cover_what_the_lab_promises():
    cases = [case for cases in WORLDS.values() for case in cases]
    assert {len(case.members) for case in cases} == {1, 2, 3, 4}
    assert {0, 1, 3, 5, 7, 1000} <= {torch.Size(case.shape).numel() for case in cases}
    assert len({case.dtype for case in cases}) == 4
    assert any(case.members not in ((0, 1, 2, 3), (0, 1, 2), (0, 1), (0,)) for case in cases)


def watched(function):
    return watch(function, [torch.arange(3.0)], [], "a case")


def test_watching_sees_shared_memory_and_changes():
    kept = torch.zeros(3)
    clean = watched(lambda x: x + 1)
    assert not clean["aliased"]
    assert not clean["reused"]
    assert torch.equal(clean["inputs"][0], torch.arange(3.0))
    assert watched(lambda x: x[1:])["aliased"]
    assert watched(lambda x: (x + 1, x.view(3, 1)))["aliased"]
    assert watched(lambda x: kept.copy_(x))["reused"]
    assert torch.equal(watched(lambda x: x.add_(1))["inputs"][0], torch.arange(1.0, 4))


def test_an_error_tells_its_case_and_a_stub_stays_a_stub():
    def fails(x):
        raise IndexError("3 of 2")

    def stub(x):
        raise NotImplementedError("lab02.swap")

    with pytest.raises(IndexError, match=r"3 of 2 \(with a case\)"):
        watched(fails)
    with pytest.raises(NotImplementedError, match=r"^lab02\.swap$"):
        watched(stub)


def test_sleep_is_found_under_any_name():
    def plain(x):
        time.sleep(0)

    def renamed(x):
        nap(0)

    def inner(x):
        return [time.sleep(0) for _ in x]

    def innocent(x):
        asleep = x.sum()
        return asleep

    assert [bool(_named(f)["sleeps"]) for f in (plain, renamed, inner, innocent)] == [
        True,
        True,
        True,
        False,
    ]


def with_last(x, number, value):
    return torch.cat([x[:-number], value[-number:]])


@pytest.mark.parametrize(
    ("cause", "ring", "got"),
    [
        ("twice", ALL_REDUCE, TOTAL + PARTS[1]),
        ("missing", ALL_REDUCE, TOTAL - PARTS[2]),
        ("missing", ALL_REDUCE, with_last(TOTAL, 3, TOTAL - PARTS[0])),
        ("alone", ALL_REDUCE, PARTS[0]),
        ("tail", ALL_REDUCE, with_last(TOTAL, 1, PARTS[0])),
        ("mean", ALL_REDUCE, TOTAL / 3),
        ("values", ALL_REDUCE, TOTAL.flip(0)),
        ("twice", REDUCE_SCATTER, (TOTAL + PARTS[0])[:3]),
        ("missing", REDUCE_SCATTER, with_last(TOTAL[:3], 1, (TOTAL - PARTS[2])[:3])),
        ("order", ALL_GATHER, PARTS[0].roll(2)),
        ("gathered", ALL_GATHER, PARTS[0] * 0),
    ],
)
def test_a_wrong_result_has_its_cause(cause, ring, got):
    assert _cause(ring, PARTS, 0, ring.expected(PARTS, 0, 3), got) == cause


@pytest.mark.parametrize("link", LINKS.values())
def test_replays_are_the_closed_forms(link):
    for size in SIZES:
        for length in LENGTHS:
            question = 8 * length, size, *link
            ring_s = cost.ring_all_reduce_time_s(*question)
            assert _replayed("ring", size, length, link) == pytest.approx(ring_s, rel=1e-9)
            tree_s = cost.tree_all_reduce_time_s(*question)
            assert _replayed("tree", size, length, link) == pytest.approx(tree_s, rel=1e-9)


def test_every_key_that_is_put_together_has_a_text():
    """Keys in f-strings, which the catalogue's own test cannot read."""
    rings = (
        "alone",
        "mean",
        "flat",
        "twice",
        "missing",
        "tail",
        "values",
        "order",
        "gathered",
        "direction",
        "neighbours",
    )
    means = ("values", "local", "of_means", "empty_counted", "deleted")
    prices = [f"{name}_time_s.{part}" for name in ("ring", "tree") for part in (*LINKS, "alone")]
    keys = [f"ring.{key}" for key in rings] + [f"mean_loss.{key}" for key in means]
    keys += ["grid_sums.all", "grid_sums.alone", "grid_sums.values"]
    wanted = {f"lab02.{key}" for key in (*keys, *prices, "tree_time_s.uneven")}
    assert wanted <= set(entries("lab02"))


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_hunt_shows_the_banks_text(name):
    notebook = read_notebook(PRISTINE / "lab02_collectives.ipynb")
    (cell,) = [c for c in notebook.cells if c.metadata.get("exercise") == f"lab02.{name}"]
    bank = ROOT / "tests" / "mutants" / "lab02" / name / "as_it_was.py"
    assert cell.source == without_docstring(bank)


def test_no_answer_needs_more_than_fifteen_lines():
    answers = dict(
        re.findall(
            r"^:exercise: lab02\.(\w+)$(.*?)^```$", MASTER.read_text(), re.MULTILINE | re.DOTALL
        )
    )
    assert set(answers) == {exercise.name for exercise in EXERCISES}
    for name, text in answers.items():
        parts = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", text, re.DOTALL)
        own = sum(part.strip().count("\n") + 1 for part in parts)
        assert own <= 15, f"{name}: {own} lines"
