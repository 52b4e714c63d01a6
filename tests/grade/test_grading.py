"""Grading promises: points for right answers whatever else happened to the notebook, none without.

Oracle: by construction, the practice notebook with known answers. Attacks are in tests/attacks.
"""

from copy import deepcopy

import nbformat
import pytest

from labkit.grade.grading import grade, reset
from labkit.grade.notebook import pristine_of
from tests.grade.practice import (
    DOUBLE,
    OWN,
    PRISTINE,
    TOTAL,
    everywhere,
    insert,
    place,
    points,
    practice,
    save,
)

FULL = (1, 2)


def answered():
    return practice(DOUBLE, TOTAL)


def test_as_handed_out_it_gets_nothing(tmp_path):
    assert points(practice(), tmp_path) == (0, 0)


def test_right_answers_get_everything(tmp_path):
    assert points(answered(), tmp_path) == FULL


def test_half_right_gets_half(tmp_path):
    assert points(practice(DOUBLE, OWN), tmp_path) == (1, 0)
    assert points(practice(total=TOTAL), tmp_path) == (0, 2)


def delete_checks(notebook):
    notebook.cells = [cell for cell in notebook.cells if "check" not in cell.metadata]


def reverse(notebook):
    notebook.cells = notebook.cells[::-1]


def lose_ids(notebook):
    for cell in notebook.cells:
        cell.pop("id")
    notebook.nbformat_minor = 4


def lose_metadata(notebook):
    """Only cell ids are left, and the file's name."""
    notebook.metadata = nbformat.from_dict({})
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})


def foreign_kernel(notebook):
    notebook.metadata.kernelspec = {"name": "foo", "display_name": "Foo", "language": "foo"}


def split(notebook):
    i = place(notebook, "lab00.total")
    second = deepcopy(notebook.cells[i])
    head, _, body = notebook.cells[i].source.partition("\n")
    notebook.cells[i].source, second.source, second.id = head, body, "second-half"
    notebook.cells.insert(i + 1, second)


def keep_the_stub_and_answer_a_copy(notebook):
    i = place(notebook, "lab00.total")
    stub = deepcopy(PRISTINE.cells[i])
    stub.id = "another"
    notebook.cells.insert(i, stub)


def turn_to_markdown(notebook):
    i = place(notebook, "lab00.total")
    old = notebook.cells[i]
    notebook.cells[i] = nbformat.v4.new_markdown_cell(old.source, metadata=old.metadata, id=old.id)


def helper_cells(notebook):
    i = place(notebook, "lab00.total")
    notebook.cells[i].source = "def total(x, group):\n    return summed(x, group) * ONE"
    insert(notebook, i + 2, "def summed(x, group):\n    " + TOTAL.partition("\n")[2].lstrip())
    insert(notebook, 2, "import math\nONE = 1\nprint('scratch'); 1 / 0")


def broken_scratch_cells(notebook):
    insert(notebook, 1, "import os; os._exit(3)")
    insert(notebook, 1, "while True: pass")
    insert(notebook, 1, "this is no Python")
    insert(notebook, 1, "def total(x, group): return 'an older try'")


def magics(notebook):
    cell = notebook.cells[place(notebook, "lab00.double")]
    cell.source = "%%time\n" + cell.source + "\n!ls"


def no_outputs(notebook):
    everywhere(lambda cell: cell.update(outputs=[], execution_count=None), notebook)


HARMLESS = [
    delete_checks,
    reverse,
    lose_ids,
    lose_metadata,
    foreign_kernel,
    split,
    keep_the_stub_and_answer_a_copy,
    turn_to_markdown,
    helper_cells,
    broken_scratch_cells,
    magics,
    no_outputs,
]


@pytest.mark.parametrize("change", HARMLESS, ids=lambda change: change.__name__)
def test_a_harmless_change_costs_nothing(change, tmp_path):
    notebook = answered()
    change(notebook)
    assert points(notebook, tmp_path) == FULL


@pytest.mark.parametrize(
    ("double", "key"),
    [
        ("import os; os._exit(0)", "run.died"),
        ("raise SystemExit(0)", "run.died"),
        ("double = 1 / 0", "run.cell"),
        ("def double(x)", "run.cell"),
        ("def double(x):\n    while True: pass", "run.hang"),
    ],
)
def test_one_bad_cell_leaves_the_other_exercise_its_points(double, key, tmp_path):
    first, second = grade(save(practice(double, TOTAL), tmp_path)).verdicts
    assert (first.key, second.points) == (key, 2)


def test_an_answer_may_use_another_answer(tmp_path):
    uses = "def double(x):\n    return helped(x)\n\ndef helped(x):\n    return x + x"
    total = TOTAL + "\n\ndouble_of = double\n"
    assert points(practice(uses, total), tmp_path) == FULL


def test_a_missing_answer_cell_is_said(tmp_path):
    notebook = answered()
    del notebook.cells[place(notebook, "lab00.total")]
    verdict = grade(save(notebook, tmp_path)).verdicts[1]
    assert verdict.key == "run.missing"
    assert "total is not in the notebook" in verdict.message


@pytest.mark.parametrize("name", ["lab00_practice (1).ipynb", "alice-lab00.ipynb", "mine.ipynb"])
def test_a_notebook_is_known_wherever_it_lies(name, tmp_path):
    assert grade(save(answered(), tmp_path, name)).full


def test_no_notebook_no_lab_no_file(tmp_path):
    text = tmp_path / "lab00_practice.ipynb"
    for content in ("hello", "[]", "{}", '{"cells": 3, "nbformat": 4}'):
        text.write_text(content)
        with pytest.raises(ValueError, match="is not a Jupyter notebook"):
            grade(text)
    with pytest.raises(FileNotFoundError, match=r"no notebook .*nowhere\.ipynb"):
        grade(tmp_path / "nowhere.ipynb")
    other = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    with pytest.raises(ValueError, match=r"other\.ipynb is not one of the labs"):
        grade(save(other, tmp_path, "other.ipynb"))


def test_accepted_answers_are_kept_and_can_stand_in_for_the_reference(tmp_path):
    grade(save(practice(DOUBLE, OWN), tmp_path))
    kept = sorted(path.name for path in (tmp_path / ".mine" / "lab00").iterdir())
    assert kept == ["double.py"]

    uses = practice("from math import twice\ndef double(x):\n    return twice(x)", TOTAL)
    uses.cells[place(uses, "lab00.double")].source = "def double(x):\n    return twice(x)"
    other = tmp_path / ".mine" / "lab99"
    other.mkdir()
    (other / "twice.py").write_text("def twice(x):\n    return x + x\n")
    path = save(uses, tmp_path)
    assert grade(path).verdicts[0].key == "run.raised"
    assert grade(path, mine=True).full


def test_an_accepted_answer_brings_its_own_name_alone(tmp_path):
    """Its helpers and imports have names that this lab may use for something else."""
    other = tmp_path / ".mine" / "lab99"
    other.mkdir(parents=True)
    helper = "from math import inf as half\ndef shared(x):\n    return x - x\n"
    (other / "twice.py").write_text(f"{helper}def twice(x):\n    return x + x + shared(x)\n")
    uses = "def double(x):\n    return shared(twice(x)) / half"
    notebook = practice(uses, TOTAL)
    insert(notebook, 1, "half = 2\ndef shared(x):\n    return x + x")
    path = save(notebook, tmp_path)
    assert grade(path, mine=True).full
    assert (tmp_path / ".mine" / "lab00" / "double.py").is_file()


def test_reset_brings_back_what_was_handed_out_and_loses_nothing(tmp_path):
    path = save(answered(), tmp_path)
    mine = path.read_bytes()
    notebook, kept = reset("00", tmp_path)
    assert notebook == path
    assert path.read_bytes() == pristine_of("00").read_bytes()
    assert kept is not None
    assert kept.read_bytes() == mine
    assert reset("lab00", tmp_path) == (path, None)
    for number in (2, 3):  # a second reset does not write over what the first one kept
        path.write_text(f"try {number}")
        assert reset("00", tmp_path)[1] == kept.with_stem(f"{kept.stem}-{number}")
    assert kept.read_bytes() == mine
    with pytest.raises(ValueError, match="no lab '77'; there are lab00"):
        reset("77", tmp_path)
