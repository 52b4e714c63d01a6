"""Grading is not fooled: a wrong answer gets no points, whatever the notebook or its code pretends.

Each attack leaves `total` wrong (a rank's own part instead of the sum) and tries to hide it; the
other exercise is right, and keeps its point wherever its own cell is no part of the attack. What
remains possible is told in labkit/grade/ranks.py.
"""

from copy import deepcopy

import nbformat
import pytest

from labkit.grade.grading import grade
from tests.grade.practice import (
    DOUBLE,
    OWN,
    TOTAL,
    everywhere,
    insert,
    place,
    points,
    practice,
    save,
)

LINES = "lab00.total.values: ok\nlab00.total.bytes: ok\n"


def cheat():
    return practice(DOUBLE, OWN)


def saved_outputs(notebook):
    output = nbformat.v4.new_output("stream", name="stdout", text=LINES)
    notebook.cells[place(notebook, "lab00.total", "check")].outputs = [output]


def checks_edited(notebook):
    everywhere(lambda cell: cell.update(source="pass", outputs=[]), notebook)


def checks_deleted(notebook):
    notebook.cells = [cell for cell in notebook.cells if "check" not in cell.metadata]


def checks_of_the_other_exercise(notebook):
    other = deepcopy(notebook.cells[place(notebook, "lab00.double", "check")])
    other.id = "copied"
    notebook.cells[place(notebook, "lab00.total", "check")] = other


def cells_reordered(notebook):
    notebook.cells = notebook.cells[::-1]


def nbval_told_to_skip(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = "# NBVAL_SKIP\n" + cell.source
            cell.metadata["tags"] = ["nbval-skip", "raises-exception"]


def points_edited(notebook):
    cell = notebook.cells[place(notebook, "lab00.total", "check")]
    cell.metadata["nbgrader"]["points"] = 0.0
    cell.metadata["check"] = "lab00.double"


def answer_cell_renamed(notebook):
    right, own = (place(notebook, f"lab00.{name}") for name in ("double", "total"))
    notebook.cells[own].metadata = deepcopy(notebook.cells[right].metadata)
    notebook.cells[own].id = "renamed"


def another_lab_claimed(notebook):
    notebook.metadata["labkit"] = {"lab": "../../../tests/lab00_practice"}


STRUCTURE = [
    saved_outputs,
    checks_edited,
    checks_deleted,
    checks_of_the_other_exercise,
    cells_reordered,
    nbval_told_to_skip,
    points_edited,
    answer_cell_renamed,
    another_lab_claimed,
]


@pytest.mark.parametrize("attack", STRUCTURE, ids=lambda attack: attack.__name__)
def test_a_rearranged_notebook_gets_nothing_for_a_wrong_answer(attack, tmp_path):
    notebook = cheat()
    attack(notebook)
    assert points(notebook, tmp_path)[1] == 0


PATCHES = {
    "print": "import builtins\nbuiltins.print = lambda *a, **k: None",
    "check": "import labkit.grade.check as c\nc.check = lambda *a: None\ncheck = c.check",
    "expect": "import labkit.grade.check as c\nc.expect = lambda *a, **k: None",
    "exercises": "import labkit.grade.lab00 as l\nl.EXERCISES = ()\nl.expect = lambda *a, **k: 0",
    "ledger": "from labkit.measure.ledger import CommLedger\nCommLedger.bytes_sent = lambda s: 24",
    "ledger's code": (
        "from labkit.measure.ledger import CommLedger\n"
        "CommLedger.bytes_sent.__code__ = (lambda self, operation=None, axis=None: 24).__code__"
    ),
    "all_reduce": "import torch.distributed as d\nd.all_reduce = lambda *a, **k: None",
    "rank": "import torch.distributed as d\nd.get_rank = lambda group=None: 0",
    "torch.equal": "import torch\ntorch.equal = lambda a, b: True",
    "what leaves": "import labkit.grade.inside as i\ni.plain = lambda value: value",
    "the guard": "import labkit.grade.inside as i\ni._changed = lambda before: ''",
    "sys.modules": "import sys\nsys.modules['labkit.measure.ledger'] = sys",
    "printed lines": f"print({LINES!r}, end='')",
    "printed at exit": f"import atexit\natexit.register(print, {LINES!r})",
    "early exit": f"print({LINES!r}, flush=True)\nimport os\nos._exit(0)",
    "polite exit": "raise SystemExit(0)",
}


@pytest.mark.parametrize(("total", "reached"), [(TOTAL, 2), (OWN, 0)], ids=["right", "wrong"])
def test_code_in_added_cells_changes_nothing(total, reached, tmp_path):
    """Neither for a wrong answer nor for a right one: added cells' statements are not run."""
    notebook = practice(DOUBLE, total)
    for patch in PATCHES.values():
        insert(notebook, 1, patch)
    assert points(notebook, tmp_path) == (1, reached)


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_code_in_the_answer_cell_gains_nothing(patch, tmp_path):
    assert points(practice(DOUBLE, f"{patch}\n{OWN}"), tmp_path) == (1, 0)


FAKE_LEDGER = """
import torch
import torch.distributed as dist
from labkit.measure.ledger import CommLedger

def sent(ledger, operation=None, axis=None):
    import torch.distributed as dist
    size = dist.get_world_size()
    return ledger.ops[0].payload_bytes * 2 * (size - 1) // size

def total(x, group):
    every = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, x, group=group)
    return torch.stack(every).sum(0)
"""


@pytest.mark.parametrize(
    "patch", ["CommLedger.bytes_sent = sent", "CommLedger.bytes_sent.__code__ = sent.__code__"]
)
def test_a_ledger_that_says_what_is_expected_is_found_out(patch, tmp_path):
    """The numbers are right and the ledger's answer too: only the replacement gives it away."""
    verdict = grade(save(practice(DOUBLE, f"{FAKE_LEDGER}\n{patch}"), tmp_path)).verdicts[1]
    assert verdict.key == "run.tampered"
    assert "CommLedger.bytes_sent" in verdict.message


ANSWERS = {
    "equal to everything": (
        "import torch\n"
        "class Any(torch.Tensor):\n"
        "    def __eq__(self, other): return True\n"
        "    def __sub__(self, other): return torch.zeros(())\n"
        "def total(x, group): return x.clone().as_subclass(Any)",
        "lab00.total.values",
    ),
    "no tensor": (
        "class Any:\n    def __eq__(self, other): return True\ndef total(x, group): return Any()",
        "run.result",
    ),
    "exits inside": ("import os\ndef total(x, group): os._exit(0)", "run.died"),
    "forges the result": (
        "import os\ndef total(x, group):\n    raise RuntimeError('Refused: ok|')",
        "run.raised",
    ),
    "patches when called": (
        "import torch.distributed as dist\n"
        "def total(x, group):\n"
        "    dist.get_rank = lambda group=None: 0\n"
        "    return x.clone()",
        "run.tampered",
    ),
}


@pytest.mark.parametrize(("answer", "key"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_that_pretends_is_named(answer, key, tmp_path):
    double, total = grade(save(practice(DOUBLE, answer), tmp_path)).verdicts
    assert double.passed
    assert total.key == key, total.message
