"""The restored notebook is the pristine one with the learner's answers. Oracle: written by hand."""

import pytest

from labkit.grade.notebook import answer_texts, find_pristine, grade_id, pristine_of, restore
from tests.grade.practice import DOUBLE, OWN, PRISTINE, TOTAL, insert, place, practice


def test_only_answers_and_definitions_come_from_the_learner():
    notebook = practice(DOUBLE, OWN)
    notebook.cells[place(notebook, "lab00.total", "check")].source = "pass"
    notebook.cells[1].source = "raise SystemExit"
    insert(notebook, 1, "def helper(): pass\nprint('not this')")
    restored = restore(notebook, PRISTINE)
    added = [cell.source for cell in restored.cells if cell.id == "extra"]
    assert added == ["def helper():\n    pass"]
    rest = [cell for cell in restored.cells if cell.id != "extra"]
    assert [cell.id for cell in rest] == [cell.id for cell in PRISTINE.cells]
    differ = [a.id for a, b in zip(rest, PRISTINE.cells, strict=True) if a.source != b.source]
    assert differ == ["lab00-double", "lab00-total"]
    assert [a.get("outputs") for a in rest] == [b.get("outputs") for b in PRISTINE.cells]


def test_a_missing_answer_fails_in_the_kernel_too():
    notebook = practice(DOUBLE, TOTAL)
    del notebook.cells[place(notebook, "lab00.total")]
    assert answer_texts(notebook, PRISTINE) == {"lab00.double": DOUBLE}
    restored = restore(notebook, PRISTINE)
    missing = restored.cells[place(restored, "lab00.total")].source
    assert missing == 'raise NotImplementedError("lab00.total: no answer cell")'


def test_the_names_of_cells():
    assert grade_id("lab02.ring") == "lab02-ring"
    assert grade_id("lab02.ring", check=True) == "lab02-ring-check"


def test_metadata_decides_before_the_name(tmp_path):
    assert find_pristine(practice(), tmp_path / "lab98_x.ipynb") == pristine_of("00")
    nameless = practice()
    del nameless.metadata["labkit"]
    assert find_pristine(nameless, tmp_path / "lab00 copy.ipynb") == pristine_of("0")
    assert find_pristine(nameless, tmp_path / "mine.ipynb") is None
    nameless.metadata["labkit"] = "nonsense"
    assert find_pristine(nameless, tmp_path / "mine.ipynb") is None


def test_an_unknown_lab_is_named():
    with pytest.raises(ValueError, match="there is no lab '98'; there are lab00"):
        pristine_of("98")
