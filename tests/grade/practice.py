"""The practice notebook as a learner might hand it in: answered, taken apart, rearranged."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from labkit.grade.grading import grade
from labkit.grade.notebook import pristine_of, read_notebook

PRISTINE = read_notebook(pristine_of("00"))
DOUBLE = "def double(x):\n    return 2 * x"
TOTAL = """def total(x, group):
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y"""
OWN = "def total(x, group):\n    return x.clone()"  # wrong: the rank's own part alone


def practice(double: str | None = None, total: str | None = None) -> NotebookNode:
    """The notebook with these answers in its cells; stubs where there is none."""
    notebook = deepcopy(PRISTINE)
    for exercise_id, text in (("lab00.double", double), ("lab00.total", total)):
        if text is not None:
            notebook.cells[place(notebook, exercise_id)].source = text
    return notebook


def place(notebook: NotebookNode, exercise_id: str, role: str = "exercise") -> int:
    """Where the answer or the check cell of an exercise is."""
    found = [i for i, c in enumerate(notebook.cells) if c.metadata.get(role) == exercise_id]
    return found[0]


def insert(notebook: NotebookNode, position: int, source: str) -> None:
    notebook.cells.insert(position, nbformat.v4.new_code_cell(source))


def everywhere(change: Callable[[NotebookNode], None], notebook: NotebookNode) -> NotebookNode:
    """Change every check cell."""
    for cell in notebook.cells:
        if "check" in cell.metadata:
            change(cell)
    return notebook


def save(notebook: NotebookNode, folder: Path, name: str = "lab00_practice.ipynb") -> Path:
    path = folder / name
    nbformat.write(notebook, path)
    return path


def points(notebook: NotebookNode, folder: Path) -> tuple[int, int]:
    """What the two exercises get, of (1, 2)."""
    double, total = grade(save(notebook, folder)).verdicts
    return double.points, total.points
