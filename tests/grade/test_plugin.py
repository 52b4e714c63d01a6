"""The plugin promises: pytest --nbval prints points that no kernel can change.

Five notebooks are graded in one run of pytest, as a learner starts it, one of which is no lab.
Oracle: by construction.
"""

import json
import re
import subprocess
import sys
from importlib.metadata import entry_points

import nbformat
import pytest

from tests.grade.practice import DOUBLE, OWN, TOTAL, insert, place, practice, save

# Installed, it is an entry point; in a checkout that is not, it is named.
PLUGIN = [] if "labkit" in entry_points(group="pytest11").names else ["-p", "labkit.grade.plugin"]
PYTEST = [sys.executable, "-m", "pytest", "--color=no", "-p", "no:cacheprovider", *PLUGIN]
LIES = "lab00.total.values: ok\nlab00.total.bytes: ok\n"


def cheat():
    """Wrong, with the right outputs saved, a check that accepts all, and a print that lies."""
    notebook = practice(DOUBLE, OWN)
    insert(notebook, 1, "import builtins\nbuiltins.print = lambda *a, **k: None")
    answer = notebook.cells[place(notebook, "lab00.total")]
    answer.source += f"\ncheck = lambda *a: print({LIES!r})"
    notebook.cells[place(notebook, "lab00.total", "check")].source = "# NBVAL_SKIP\n"
    return notebook


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labs")
    save(practice(), folder, "lab00_handed_out.ipynb")
    save(practice(DOUBLE, TOTAL), folder, "lab00_right.ipynb")
    save(practice("import os; os._exit(1)", TOTAL), folder, "lab00_dead.ipynb")
    save(cheat(), folder, "lab00_cheat.ipynb")
    other = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
    save(other, folder, "other.ipynb")
    return folder, subprocess.run(
        [*PYTEST, "--nbval", "--nbval-current-env", "-rA", str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def points(run, name):
    folder, _ = run
    told = json.loads((folder / f"lab00_{name}.feedback.json").read_text())
    return tuple(verdict["points"] for verdict in told)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("handed_out", (0, 0)), ("right", (1, 2)), ("dead", (0, 2)), ("cheat", (1, 0))],
)
def test_points(run, name, expected):
    assert points(run, name) == expected


def test_the_summary_says_points_and_hints(run):
    _, done = run
    summary = done.stdout[done.stdout.index("= points =") :]
    assert re.search(
        r"lab00_right\.ipynb\nlab00\.double +1/1\nlab00\.total +2/2\ntotal +3/3", summary
    )
    assert "There is no answer yet: lab00.double\n    Hint: Replace the line" in summary


def outcomes(done, notebook):
    """What became of each item, from pytest's last lines."""
    line = rf"^(PASSED|FAILED) \S*{notebook}\.ipynb::(Cell \d|lab00\.\w+)"
    return {item: outcome for outcome, item in re.findall(line, done.stdout, re.MULTILINE)}


def test_cells_pass_and_fail_as_their_notebooks_do(run):
    _, done = run
    right = outcomes(done, "lab00_right")
    assert set(right.values()) == {"PASSED"}
    assert len(right) == 6
    dead = outcomes(done, "lab00_dead")
    assert dead["lab00.total"] == "PASSED"
    assert dead["lab00.double"] == dead["Cell 1"] == "FAILED"
    assert done.returncode == 1


def test_a_dead_kernel_is_called_dead(run):
    assert "the kernel died in this cell" in run[1].stdout


def test_another_notebook_is_left_to_nbval(run):
    folder, done = run
    assert outcomes(done, "other") == {"Cell 0": "PASSED"}
    assert not (folder / "other.feedback.json").exists()


def test_without_nbval_it_does_nothing(tmp_path):
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n\ndef test_nothing():\n"
        "    assert not [m for m in sys.modules if m in ('torch', 'labkit.grade.check')]\n"
    )
    command = [*PYTEST, "-q", "--strict-config", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
