"""Release promises: the same master gives the same bytes, and a lab that proves nothing is refused.

Oracle: the committed notebooks. One test runs a kernel; the rest change notebooks by hand.
"""

from copy import deepcopy
from pathlib import Path

import jupytext
import nbformat
import pytest

from labkit.grade.notebook import PRISTINE, pristine_of, read_notebook
from labkit.grade.release import (
    SOLUTION,
    _refuse_unstable,
    label,
    prove,
    release,
    with_stubs,
    without_docstring,
)
from tests.grade.practice import DOUBLE, TOTAL, place, practice

ROOT = Path(__file__).parents[2]
MASTERS = sorted((ROOT / "labs" / "masters").glob("lab*.md"))
PRACTICE = Path(__file__).parent / "masters" / "lab00_practice.md"


def master(text=None, stem="lab00_practice"):
    return label(jupytext.reads(text or PRACTICE.read_text(), fmt="md:myst"), stem)


def test_a_rebuild_gives_the_same_bytes(tmp_path):
    release(PRACTICE, tmp_path / "labs", tmp_path / "pristine")
    learner = (tmp_path / "labs" / "lab00_practice.ipynb").read_bytes()
    assert learner == pristine_of("00").read_bytes()
    assert learner == (tmp_path / "pristine" / "lab00_practice.ipynb").read_bytes()
    solution = read_notebook(tmp_path / "labs" / "solutions" / "lab00_practice.ipynb")
    assert "return 2 * x" in solution.cells[place(solution, "lab00.double")].source


@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
def test_the_committed_notebooks_are_those_of_the_master(path):
    """Texts and metadata; that outputs are what the cells print is for `make labs`."""
    solution = read_notebook(ROOT / "labs" / "solutions" / f"{path.stem}.ipynb")
    learner = ROOT / "labs" / f"{path.stem}.ipynb"
    assert learner.read_bytes() == (PRISTINE / learner.name).read_bytes()
    made = master(path.read_text(), path.stem)
    stubs = with_stubs(made, ROOT / "tests" / "mutants")
    for built, committed in ((made, solution), (stubs, read_notebook(learner))):
        assert [(c.id, c.source, c.metadata) for c in built.cells] == [
            (c.id, c.source, c.metadata) for c in committed.cells
        ]


def test_ids_stay_and_checks_are_locked():
    notebook = master()
    assert [cell.id for cell in notebook.cells][2:5] == [
        "c002",
        "lab00-double",
        "lab00-double-check",
    ]
    check = notebook.cells[4]
    assert check.metadata["nbgrader"]["points"] == 1.0
    assert not check.metadata["editable"]
    nbformat.validate(notebook)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (":exercise: lab00.total", ":exercise: lab00.sum", r"lab00\.sum, which has no check"),
        (":check: lab00.total", ":check: lab00.double", "needs the cells"),
        (":exercise: lab00.total", "", "needs the cells"),
        ("### BEGIN SOLUTION", "# begin", r"answer cell of lab00\.double lacks BEGIN SOLUTION"),
    ],
)
def test_a_master_that_does_not_fit_its_checks_is_refused(old, new, told):
    with pytest.raises(ValueError, match=told):
        master(PRACTICE.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ({"output_type": "stream", "name": "stdout", "text": "<A at 0x7f00aa11>"}, "0x7f00aa"),
        ({"output_type": "stream", "name": "stderr", "text": "/tmp/ipykernel_3/1.py"}, "ipykernel"),
        ({"output_type": "error", "ename": "E", "evalue": "x", "traceback": []}, "fails: E: x"),
        (
            {"output_type": "display_data", "metadata": {}, "data": {"text/plain": "/home/me"}},
            "/home/",
        ),
    ],
)
def test_an_output_that_changes_from_run_to_run_is_refused(output, told):
    cell = nbformat.v4.new_code_cell("x", id="c007")
    with pytest.raises(ValueError, match=f"c007 .*{told}"):
        _refuse_unstable(cell, nbformat.from_dict(output))


def test_a_stub_raises_and_a_bug_hunt_holds_the_bank_s_text(tmp_path):
    notebook = master()
    bug = "lab00/double/square.py"
    notebook.cells[place(notebook, "lab00.double")].metadata["bug"] = bug
    bank = ROOT / "tests" / "mutants"
    learner = with_stubs(notebook, bank)
    hunted = learner.cells[place(learner, "lab00.double")]
    assert hunted.source == without_docstring(bank / bug)
    assert "expect" not in hunted.source
    assert "bug" not in hunted.metadata
    stub = learner.cells[place(learner, "lab00.total")].source
    assert stub.endswith('    # YOUR CODE HERE\n    raise NotImplementedError("lab00.total")')
    assert not SOLUTION.search(stub)


def test_a_wrong_solution_and_a_stub_that_passes_are_refused():
    right = practice(DOUBLE, TOTAL)
    wrong = deepcopy(right)
    wrong.cells[place(wrong, "lab00.total")].source = "def total(x, group): return x"
    with pytest.raises(ValueError, match=r"solution of lab00\.total fails: Rank 0 of 2: expected"):
        prove(wrong, practice(), "lab00_practice")
    with pytest.raises(ValueError, match=r"stub of lab00\.double passes"):
        prove(right, practice(DOUBLE), "lab00_practice")
