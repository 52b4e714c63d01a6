"""The bank: every wrong solution is rejected with the message it names, every right one passes.

`python tests/test_mutants.py` records the table that the book shows; a test says when that is due.
"""

import json
from pathlib import Path

import pytest

from labkit.grade.bank import read_bank, table, try_solution
from labkit.grade.check import exercises_of
from labkit.grade.judge import judge
from labkit.grade.notebook import PRISTINE, answers, lab_of, read_notebook
from labkit.measure.record import record

MUTANTS = Path(__file__).parent / "mutants"
RECORDED = Path(__file__).parents[1] / "book" / "results" / "wrong_solutions.json"
BANK = read_bank(MUTANTS)
WRONG = [s for s in BANK if s.expect and not s.exercise.startswith("lab00")]  # 00 is for practice
STUBS = [
    (path, exercise.id)
    for path in sorted(PRISTINE.glob("*.ipynb"))
    for exercise in exercises_of(lab_of(path.stem))
]


@pytest.mark.parametrize("solution", BANK, ids=lambda s: f"{s.exercise}.{s.name}")
def test_the_bank(solution):
    verdict = try_solution(solution)
    assert verdict.key == solution.expect, verdict.message


@pytest.mark.parametrize(("path", "exercise_id"), STUBS, ids=[exercise for _, exercise in STUBS])
def test_what_is_handed_out_fails(path, exercise_id):
    """The vacuity guard: a check that the stub passes would assert nothing."""
    pristine = read_notebook(path)
    exercises = {exercise.id: exercise for exercise in exercises_of(lab_of(path.stem))}
    assert not judge(exercises[exercise_id], answers(pristine, pristine)[exercise_id]).passed


@pytest.mark.parametrize("exercise_id", sorted({exercise for _, exercise in STUBS}))
def test_every_exercise_has_both_kinds(exercise_id):
    kinds = [bool(s.expect) for s in BANK if s.exercise == exercise_id]
    assert kinds.count(True) >= (2 if exercise_id.startswith("lab00") else 8)
    assert kinds.count(False) >= 2


def test_the_recorded_table_is_the_bank():
    rows = json.loads(RECORDED.read_text())["result"]["rows"]
    recorded = [(row["exercise"], row["wrong"], row["fault"], row["caught_by"]) for row in rows]
    assert recorded == [(s.exercise, s.name, s.fault, s.expect) for s in WRONG], (
        "run python tests/test_mutants.py"
    )


if __name__ == "__main__":
    record("wrong_solutions", {"rows": table(WRONG)})
