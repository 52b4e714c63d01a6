"""Lab 06: what the bank of wrong solutions cannot show about its checks.

Promised: no schedule is faster than the one asked for; what a rank holds is counted as the library
counts it; a stage sees who holds what, and when it is let go; recorded runs have the bubble of the
formula, of both schedules; the hunted bug cannot be seen where m = p; no answer is longer than its
text says. Oracle: exhaustive search, the library's schedules, the whole batch at once, the papers'
formula, the files themselves.
"""

import re
from itertools import pairwise, permutations, product
from math import ceil
from pathlib import Path

import pytest
import torch

from labkit.grade import lab06_suspect
from labkit.grade.bank import read_bank, try_solution
from labkit.grade.catalogue import entries
from labkit.grade.lab06 import EXERCISES
from labkit.grade.lab06_bubble import CASES, LARGER, MEMORIES, in_rounds, played, replayed
from labkit.grade.lab06_schedules import CASES as SCHEDULES
from labkit.grade.lab06_schedules import SPLIT, WHOLE, held, schedule_of
from labkit.grade.lab06_stage import WORLDS, _cause, pairs_of, serial
from labkit.grade.lab06_stage_ranks import ROWS, WIDTH, Case, Stage, batch_of, loss_of
from labkit.parallel.pipeline import gpipe, one_f_one_b, simulate_schedule, zero_bubble

ROOT = Path(__file__).parents[2]
MASTER = ROOT / "labs" / "masters" / "lab06_pipeline.md"
MOST_LINES = {"run_stage": 40, "suspect": 40}
ALL_CASES = [case for _, cases in WORLDS for case in cases]


def legal_rows(kinds, num_micro_batches):
    """Every order of a rank's actions in which each has what it needs from its own rank."""
    actions = [(kind, i) for i in range(num_micro_batches) for kind in kinds]
    for row in permutations(actions):
        places = {action: place for place, action in enumerate(row)}
        if all(
            places[first, i] < places[second, i]
            for first, second in pairwise(kinds)
            for i in range(num_micro_batches)
        ):
            yield row


def fastest(kinds, num_stages, num_micro_batches):
    """The shortest step of all schedules."""
    rows = list(legal_rows(kinds, num_micro_batches))
    found = []
    for schedule in product(rows, repeat=num_stages):
        try:
            found.append(simulate_schedule(schedule_of(schedule)).makespan_s)
        except ValueError:  # ranks that wait for each other
            continue
    return min(found)


@pytest.mark.parametrize(("p", "m"), [(1, 2), (2, 1), (2, 2), (3, 1), (3, 2)])
def test_nothing_is_faster(p, m):
    assert fastest(WHOLE, p, m) == 3 * (m + p - 1)
    if p * m <= 4:
        assert fastest(SPLIT, p, m) == max(3 * m + p - 1, 2 * m + 2 * p - 1)


@pytest.mark.parametrize(("p", "m"), SCHEDULES)
def test_the_library_holds_what_the_check_allows(p, m):
    limits = {one_f_one_b: [min(m, p - rank) for rank in range(p)], gpipe: [m] * p}
    for make, expected in limits.items():
        schedule = make(p, m)
        assert [held(row) for row in pairs_of(schedule)] == expected
        timeline = simulate_schedule(schedule)
        assert list(timeline.peak_stash) == expected
        assert timeline.makespan_s == 3 * (m + p - 1)


@pytest.mark.parametrize(("p", "m"), [(4, 8), (2, 5), (3, 4), (8, 16)])
def test_the_librarys_zero_bubble_is_no_faster(p, m):
    timeline = simulate_schedule(zero_bubble(p, m), input_s=1, weight_s=1)
    assert timeline.makespan_s >= max(3 * m + p - 1, 2 * m + 2 * p - 1)


def test_a_stage_counts_the_micro_batches_that_autograd_holds():
    stage, (inputs, _) = Stage(0), batch_of(3)
    results = [stage(inputs[i]) for i in (0, 2, 1)]
    results[1].sum().backward()
    results[0].sum().backward(retain_graph=True)
    assert stage.happened == [
        ("F", 0, ROWS, 1),
        ("F", 2, ROWS, 2),
        ("F", 1, ROWS, 3),
        ("B", 2, 0, 0),
        ("B", 0, 0, 0),
    ]
    assert sorted(stage.live) == [0, 1]
    del results
    assert not stage.live


@pytest.mark.parametrize("m", [1, 3, 8])
def test_the_serial_run_is_the_whole_batch(m):
    stages = [Stage(place) for place in range(3)]
    x, targets = (torch.cat(parts) for parts in batch_of(m))
    for stage in stages:
        x = stage(x)
    loss = loss_of(x, targets)
    loss.backward()
    told, gradients = serial(3, m)
    assert told == pytest.approx(loss.item(), abs=1e-12)
    for stage, of_stage in zip(stages, gradients, strict=True):
        for parameter, gradient in zip(stage.parameters(), of_stage, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, atol=1e-12, rtol=0)
            assert gradient.abs().max() > 1e-6, "a wrong one would pass within the tolerance"
            if m > 1:
                causes = [_cause(gradient * k, gradient, m) for k in (m, 1 / m, 1 / m**2, 0)]
                assert causes == ["sum", "divided", "divided", "nothing"]


def test_the_cases_cover_what_the_lab_promises():
    assert {case.num_micro_batches for case in ALL_CASES} == {1, 3, 8}
    assert {len(case.members) for case in ALL_CASES} == {1, 2, 3, 4}
    assert any(case.members == (1, 3) for case in ALL_CASES), "places are not ranks there"
    assert len({case.told for case in ALL_CASES}) == 3
    assert {(p > m, p == m, p < m) for p, m in SCHEDULES} == set(permutations((True, False, False)))
    assert 1 in {p for p, _ in SCHEDULES}
    assert 1 in {m for _, m in SCHEDULES}
    inputs, _ = batch_of(8)
    assert inputs[0].shape == (ROWS, WIDTH)


@pytest.mark.parametrize(("p", "m"), CASES)
def test_real_runs_of_both_schedules_have_the_bubble_of_the_formula(p, m):
    for name in ("gpipe", "1f1b"):
        assert replayed(name, p, m) == pytest.approx((p - 1) / (m + p - 1), abs=1e-9)


@pytest.mark.parametrize(("p", "m"), [*CASES, *LARGER])
def test_virtual_time_has_the_bubble_of_the_formula(p, m):
    assert played(p, m) == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize(("p", "m", "most"), MEMORIES)
def test_rounds_add_up(p, m, most):
    idle = ceil(m / most) * (p - 1)
    assert in_rounds("gpipe", p, m, most) == pytest.approx(idle / (m + idle))
    assert most >= p, "else 1F1B does not fit"
    assert max(held(row) for row in pairs_of(one_f_one_b(p, m))) <= most


def test_the_hunted_bug_cannot_be_seen_with_as_many_micro_batches_as_ranks(monkeypatch):
    bug = next(
        s
        for s in read_bank(ROOT / "tests" / "mutants")
        if (s.exercise, s.name) == ("lab06.suspect", "as_it_was")
    )
    even = tuple(Case(told="even", members=tuple(range(p)), num_micro_batches=p) for p in (2, 4))
    monkeypatch.setattr(lab06_suspect, "WORLDS", ((4, even),))
    assert try_solution(bug).passed


def test_every_key_that_is_put_together_has_a_text():
    """Keys in f-strings, which the catalogue's own test cannot read."""
    shared = ("neighbour", "stuck", "input", "no_gradient", "sum", "divided", "nothing", "values")
    shared += ("loss", "operation", "bytes", "unwaited")
    keys = [f"{exercise}.{key}" for exercise in ("run_stage", "suspect") for key in shared]
    keys += [f"schedule.{key}" for key in ("unknown", "missing", "twice")]
    ends = ("ideal", "percent", "working", "one_more", "one_less", "values")
    keys += [f"bubble_fraction.{key}" for key in ends]
    ends = ("halved", "one_flush", "in_rounds", "one_round", "ideal", "values")
    keys += [f"bubble_at_equal_memory.{key}" for key in ends]
    assert {f"lab06.{key}" for key in keys} <= set(entries("lab06"))


def test_no_answer_is_longer_than_its_text_says():
    cells = re.findall(
        r"^:exercise: lab06\.(\w+)$(.*?)^```$", MASTER.read_text(), re.MULTILINE | re.DOTALL
    )
    assert {f"lab06.{name}" for name, _ in cells} == {exercise.id for exercise in EXERCISES}
    for name, text in cells:
        parts = re.findall(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", text, re.DOTALL)
        own = sum(part.strip().count("\n") + 1 for part in parts)
        assert own <= MOST_LINES.get(name, 15), f"{name}: {own} lines"
