"""A learner's notebook beside the one that was handed out.

Whatever happened to the notebook, three things are taken from the pristine copy: which cells there
are, what check cells say, and what the outputs should be. From the learner's come the answer cells,
found by grade_id, else by cell id; copies and split halves of one are joined, cells may have moved
or become Markdown. Extra cells add their functions, classes, imports and constants.
"""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.reader import NotJSONError

from labkit.grade.answers import (
    Piece,
    Source,
    choose,
    definitions,
    standing_in,
    statements,
    whole,
)
from labkit.grade.check import exercises_of

PRISTINE = Path(__file__).parent / "pristine"
NOT_A_NOTEBOOK = (  # what nbformat raises, from the first byte to the last key
    *(NotJSONError, nbformat.ValidationError, UnicodeDecodeError),
    *(AttributeError, KeyError, TypeError),
)
LAB = re.compile(r"lab\d\d")


def grade_id(exercise_id: str, *, check: bool = False) -> str:
    """Name of an exercise's answer or check cell, in letters that nbgrader and nbformat allow."""
    return exercise_id.replace(".", "-") + ("-check" if check else "")


def lab_of(stem: str) -> str:
    """ "lab02" of "lab02_collectives"."""
    return stem.partition("_")[0]


def read_notebook(path: Path) -> NotebookNode:
    """Read a notebook of any format version.

    Raises:
        ValueError: if it is not a notebook.
        FileNotFoundError: if it is not there.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no notebook {path}")
    try:
        return nbformat.read(path, as_version=4, capture_validation_error={})
    except NOT_A_NOTEBOOK:
        raise ValueError(f"{path} is not a Jupyter notebook") from None


def find_pristine(notebook: NotebookNode, path: Path) -> Path | None:
    """The pristine notebook of the lab that this is, by its metadata, else by its file name."""
    told = notebook.metadata.get("labkit", {})
    stem = told.get("lab") if isinstance(told, dict) else None
    exact = PRISTINE / f"{Path(str(stem)).name}.ipynb"
    if exact.is_file():
        return exact
    name = LAB.search(path.stem)
    return next(iter(sorted(PRISTINE.glob(f"{name[0]}_*.ipynb"))), None) if name else None


def pristine_of(lab: str) -> Path:
    """The pristine notebook of "02" or "lab02".

    Raises:
        ValueError: naming the labs that there are.
    """
    wanted = f"lab{lab.removeprefix('lab').zfill(2)}"
    for path in sorted(PRISTINE.glob("*.ipynb")):
        if lab_of(path.stem) == wanted:
            return path
    known = ", ".join(lab_of(path.stem) for path in sorted(PRISTINE.glob("*.ipynb")))
    raise ValueError(f"there is no lab {lab!r}; there are {known}")


def answer_texts(notebook: NotebookNode, pristine: NotebookNode) -> dict[str, str]:
    """The text of each answer cell that is there, by exercise id."""
    ids = {_grade_id(cell): cell.metadata["exercise"] for cell in _answer_cells(pristine)}
    texts: dict[str, str] = {}
    for cell in notebook.cells:
        exercise_id = ids.get(_grade_id(cell))
        if exercise_id is not None and cell.cell_type != "raw":
            before = texts.get(exercise_id)
            texts[exercise_id] = cell.source if before is None else f"{before}\n\n{cell.source}"
    return texts


def answers(
    notebook: NotebookNode, pristine: NotebookNode, accepted: Mapping[str, str] | None = None
) -> dict[str, Source | None]:
    """What grading runs for each exercise; None where the answer cell is missing.

    Args:
        accepted: answers from other labs, by name, that stand in for what this one imports.
    """
    texts = answer_texts(notebook, pristine)
    exercises = exercises_of(lab_of(pristine.metadata["labkit"]["lab"]))
    shared = [
        *(piece for cell in _given_cells(pristine) for piece in statements(cell.source)),
        *(standing_in(name, text) for name, text in (accepted or {}).items()),
        *(piece for cell in _extra_cells(notebook, pristine) for piece in definitions(cell.source)),
    ]
    cells = {exercise_id: whole(text) for exercise_id, text in texts.items()}
    return {
        exercise.id: _source(exercise.id, exercise.name, cells, shared) for exercise in exercises
    }


def _source(
    exercise_id: str, name: str, cells: dict[str, Piece], shared: list[Piece]
) -> Source | None:
    if exercise_id not in cells:
        return None
    others = [piece for other, piece in cells.items() if other != exercise_id]
    return choose(cells[exercise_id], name, [*shared, *others])


def restore(notebook: NotebookNode, pristine: NotebookNode) -> NotebookNode:
    """The pristine notebook with the learner's answers and the definitions of extra cells."""
    restored = deepcopy(pristine)
    texts = answer_texts(notebook, pristine)
    for cell in _answer_cells(restored):
        missing = f'raise NotImplementedError("{cell.metadata["exercise"]}: no answer cell")'
        cell.source = texts.get(cell.metadata["exercise"], missing)
    extra = "\n".join(
        piece.text
        for cell in _extra_cells(notebook, pristine)
        for piece in definitions(cell.source)
    )
    first = next(i for i, cell in enumerate(restored.cells) if "exercise" in cell.metadata)
    if extra:
        added = nbformat.v4.new_code_cell(extra, id="extra")
        added.metadata["tags"] = ["nbval-ignore-output"]
        restored.cells.insert(first, added)
    return restored


def _grade_id(cell: NotebookNode) -> str | None:
    told = cell.metadata.get("nbgrader", {})
    return (told.get("grade_id") if isinstance(told, dict) else None) or cell.get("id")


def _answer_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if "exercise" in cell.metadata]


def _given_cells(notebook: NotebookNode) -> Iterator[NotebookNode]:
    """Code cells that belong to no exercise."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and not {"exercise", "check"} & cell.metadata.keys():
            yield cell


def _extra_cells(notebook: NotebookNode, pristine: NotebookNode) -> Iterator[NotebookNode]:
    known = {_grade_id(cell) for cell in pristine.cells}
    texts = {cell.source for cell in pristine.cells}
    for cell in notebook.cells:
        if cell.cell_type == "code" and _grade_id(cell) not in known and cell.source not in texts:
            yield cell
