"""From a lab's master to its two notebooks: the solution, executed, and the learner's, with stubs.

    labs/masters/lab02_collectives.md -> labs/solutions/lab02_collectives.ipynb
                                      -> labs/lab02_collectives.ipynb
                                      -> labkit/grade/pristine/lab02_collectives.ipynb, the same

A master is a MyST text notebook. Each exercise of labkit.grade.labNN has two code cells:

    ```{code-cell} ipython3
    :exercise: lab02.ring_all_reduce
    def ring_all_reduce(x, group):
        \"\"\"What it does, shapes, what it returns.\"\"\"
        ### BEGIN SOLUTION
        ...
        ### END SOLUTION
    ```

    ```{code-cell} ipython3
    :check: lab02.ring_all_reduce
    check("lab02.ring_all_reduce", ring_all_reduce)
    ```

The learner finds `raise NotImplementedError` between the markers. A bug hunt's answer cell has a
further line, `:bug: lab02/price/no_latency.py`: the learner finds that wrong solution of
tests/mutants, without its docstring. Every other code cell keeps the output of the solution and is
compared with it, unless its `:tags: [nbval-ignore-output]` says otherwise.

A lab is refused if a cell fails or prints what differs from run to run, if the solution does not
pass or if the learner's notebook passes anything. The same master gives the same bytes.
"""

import ast
import re
import subprocess
from copy import deepcopy
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from labkit.grade.check import exercises_of
from labkit.grade.judge import judge
from labkit.grade.kernel import kernel_manager
from labkit.grade.notebook import PRISTINE, answers, grade_id, lab_of

SOLUTION = re.compile(r"^([ \t]*)### BEGIN SOLUTION\n.*?### END SOLUTION[^\n]*\n?", re.M | re.S)
UNSTABLE = re.compile(r"0x[0-9a-f]{6,}|/tmp/ipykernel|<answer \d|/(?:home|root)/")
CELL_TIMEOUT_S = 120


def release(master: Path, labs: Path, pristine: Path = PRISTINE) -> None:
    """Build the notebooks of one master and write all three files.

    Raises:
        ValueError: if the lab is refused; nothing is written then.
    """
    solution = execute(label(jupytext.read(master), master.stem), labs)
    learner = with_stubs(solution, labs.parent / "tests" / "mutants")
    prove(solution, learner, master.stem)
    for folder, notebook in ((labs / "solutions", solution), (labs, learner), (pristine, learner)):
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / f"{master.stem}.ipynb")


def label(notebook: NotebookNode, stem: str) -> NotebookNode:
    """Give every cell an id that stays, and exercise cells what grading finds them by.

    Raises:
        ValueError: unless each exercise has one answer cell and one check cell, and no other.
    """
    exercises = {exercise.id: exercise for exercise in exercises_of(lab_of(stem))}
    found = []
    for number, cell in enumerate(notebook.cells):
        cell.id = f"c{number:03d}"
        for role in ("exercise", "check"):
            if (exercise_id := cell.metadata.get(role)) is None:
                continue
            found.append((exercise_id, role))
            if exercise_id not in exercises:
                raise ValueError(f"{stem} has a cell for {exercise_id}, which has no check")
            points = exercises[exercise_id].points if role == "check" else None
            _mark(cell, exercise_id, points)
    wanted = [(exercise_id, role) for exercise_id in exercises for role in ("exercise", "check")]
    if sorted(found) != sorted(wanted):
        raise ValueError(f"{stem} needs the cells {wanted} once each; it has {found}")
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
        "labkit": {"lab": stem},
    }
    return nbformat.from_dict(notebook)


def _mark(cell: NotebookNode, exercise_id: str, points: int | None) -> None:
    """Metadata in the schema of nbgrader, which reads these notebooks too."""
    is_check = points is not None
    cell.id = grade_id(exercise_id, check=is_check)
    cell.metadata["nbgrader"] = {
        "schema_version": 3,
        "grade_id": cell.id,
        "grade": is_check,
        "locked": is_check,
        "solution": not is_check,
        "task": False,
        **({"points": float(points)} if points is not None else {}),
    }
    if is_check:
        cell.metadata.update(editable=False, deletable=False)
    elif not SOLUTION.search(cell.source):
        raise ValueError(f"the answer cell of {exercise_id} lacks BEGIN SOLUTION and END SOLUTION")
    else:
        cell.metadata["tags"] = ["nbval-ignore-output"]


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run every cell in a fresh kernel.

    Raises:
        ValueError: if a cell fails, or prints what is different next time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manager = kernel_manager()
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=CELL_TIMEOUT_S,
        allow_errors=True,
        coalesce_streams=True,  # how a kernel cuts what it prints differs from run to run
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        client.execute(stderr=subprocess.DEVNULL)
    finally:  # nbclient leaves a kernel that it did not make
        if client.kc is not None:
            client.kc.stop_channels()
        manager.shutdown_kernel(now=True)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            _refuse_unstable(cell, output)
    return notebook


def _refuse_unstable(cell: NotebookNode, output: NotebookNode) -> None:
    if output.output_type == "error":
        raise ValueError(f"cell {cell.id} fails: {output.ename}: {output.evalue}")
    text = str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", ""))
    if unstable := UNSTABLE.search(text):
        raise ValueError(f"cell {cell.id} prints {unstable[0]!r}, which differs from run to run")


def with_stubs(solution: NotebookNode, mutants: Path) -> NotebookNode:
    """The learner's notebook: stubs for solutions, the bank's text for a bug hunt."""
    learner = deepcopy(solution)
    for cell in learner.cells:
        exercise_id = cell.metadata.get("exercise")
        if exercise_id is None:
            continue
        bug = cell.metadata.pop("bug", None)  # its name would tell too much
        cell.source = without_docstring(mutants / bug) if bug else _stub(cell.source, exercise_id)
    return learner


def _stub(source: str, exercise_id: str) -> str:
    stub = rf'\1# YOUR CODE HERE\n\1raise NotImplementedError("{exercise_id}")\n'
    return SOLUTION.sub(stub, source).rstrip("\n")


def without_docstring(path: Path) -> str:
    """The text of a wrong solution as a learner sees it, without the line that names its fault."""
    text = path.read_text(encoding="utf-8")
    first = ast.parse(text).body[0]
    assert first.end_lineno is not None, "it was parsed from a text"
    return "\n".join(text.splitlines()[first.end_lineno :]).strip()


def prove(solution: NotebookNode, learner: NotebookNode, stem: str) -> None:
    """The solution passes everything, and the notebook as it is handed out nothing.

    Raises:
        ValueError: naming the exercise.
    """
    for exercise in exercises_of(lab_of(stem)):
        right = judge(exercise, answers(solution, learner)[exercise.id])
        if not right.passed:
            raise ValueError(f"the solution of {exercise.id} fails: {right.message}")
        if judge(exercise, answers(learner, learner)[exercise.id]).passed:
            raise ValueError(f"the stub of {exercise.id} passes: its check asserts nothing")
