"""The learner's path, once, in JupyterLab itself: a wrong answer, its message, a right one, points.

Promised: a learner who opens a lab as it is handed out, types and runs, reads what the grader says
and nothing of how it is made, and what was saved is what is graded. Oracles: the recorded message
of a wrong solution, the outputs that the lab was released with.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from labkit.grade.check import exercises_of
from labkit.grade.notebook import answer_texts, read_notebook
from tests.book.conftest import CHROMIUM, FLAGS
from tests.labs.jupyterlab import Notebook, jupyter_lab

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
LAB, EXERCISE, WRONG = "lab02_collectives", "lab02.ring_reduce_scatter", "wrong_owner"
IMPORTS, ANSWER, CHECK = 1, 5, 6  # places of cells in the notebook
SLOW_MS = 120_000


@pytest.fixture
def labs(tmp_path):
    """A learner's folder of labs: notebooks, no solutions."""
    folder = tmp_path / "labs"
    folder.mkdir()
    shutil.copy(ROOT / "labs" / f"{LAB}.ipynb", folder)
    return folder


@pytest.fixture
def notebook(labs, tmp_path):
    """The lab, open in JupyterLab."""
    with jupyter_lab(labs, tmp_path / "home") as address, sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = chromium.new_page(viewport={"width": 1300, "height": 1000})
        page.set_default_timeout(SLOW_MS)
        yield Notebook(page, address, f"{LAB}.ipynb")
        chromium.close()


def test_a_learner_gets_a_message_then_points(notebook, labs):
    assert notebook.run(IMPORTS).strip() == ""

    notebook.write(ANSWER, wrong_answer())
    notebook.run(ANSWER)
    assert notebook.run(CHECK).split() == recorded_words()

    notebook.write(ANSWER, right_answer())
    notebook.run(ANSWER)
    assert notebook.run(CHECK).split() == released_words()

    notebook.save()
    graded = grade(labs / f"{LAB}.ipynb")
    assert graded.returncode == 1, "one exercise is not all of them"
    lines = [line.split() for line in graded.stdout.splitlines()]
    exercises = exercises_of("lab02")
    (points,) = (exercise.points for exercise in exercises if exercise.id == EXERCISE)
    assert [EXERCISE, f"{points}/{points}"] in lines
    assert lines[-1] == ["total", f"{points}/{sum(exercise.points for exercise in exercises)}"]


def wrong_answer() -> str:
    lab, name = EXERCISE.split(".")
    return (ROOT / "tests" / "mutants" / lab / name / f"{WRONG}.py").read_text()


def recorded_words() -> list[str]:
    """The headline and the message that the book records for the wrong answer."""
    record = json.loads((ROOT / "book" / "results" / "wrong_solutions.json").read_text())
    (row,) = [
        row
        for row in record["result"]["rows"]
        if (row["exercise"], row["wrong"]) == (EXERCISE, WRONG)
    ]
    return ["CheckFailed", row["caught_by"], *row["message"].split()]


def right_answer() -> str:
    solution = read_notebook(ROOT / "labs" / "solutions" / f"{LAB}.ipynb")
    return answer_texts(solution, solution)[EXERCISE]


def released_words() -> list[str]:
    handed_out = read_notebook(ROOT / "labs" / f"{LAB}.ipynb")
    return handed_out.cells[CHECK].outputs[0].text.split()


def grade(path: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "labkit", "grade", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)
