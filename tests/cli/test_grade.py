"""python -m labkit grade and release: one clear line for a mistake, exit code 0 for all points.

Oracle: by construction, the practice notebook.
"""

import pytest
from click.testing import CliRunner

from labkit.cli import main
from tests.grade.practice import DOUBLE, OWN, TOTAL, practice, save


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_points_decide_the_exit_code(tmp_path):
    done = run("grade", save(practice(DOUBLE, TOTAL), tmp_path))
    assert done.exit_code == 0, done.output
    assert done.output.split()[-2:] == ["total", "3/3"]
    done = run("grade", save(practice(DOUBLE, OWN), tmp_path))
    assert done.exit_code == 1
    assert "Does every rank's tensor enter the sum, once?" in done.output
    assert (tmp_path / "lab00_practice.feedback.md").is_file()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["grade", "nowhere.ipynb"], "Error: there is no notebook nowhere.ipynb"),
        (["grade", "00"], "Error: there is no notebook labs/lab00_practice.ipynb"),
        (["grade", "98"], "Error: there is no lab '98'; there are lab00"),
        (["grade", "text.ipynb"], "Error: text.ipynb is not a Jupyter notebook"),
        (["release", "98"], "Error: there is no lab '98' in labs/masters; there are none"),
        (["release", "98", "--reset"], "Error: there is no lab '98'; there are lab00"),
        (["release", "--reset"], "Error: which lab is to be reset? 02, say"),
    ],
)
def test_a_mistake_is_one_line(arguments, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.ipynb").write_text("hello")
    (tmp_path / "labs").mkdir()
    done = run(*arguments)
    assert done.exit_code == 2
    assert len(done.output.splitlines()) == 1
    assert done.output.startswith(told)


@pytest.mark.parametrize("lab", ["00", "0", "lab00"])
def test_a_number_is_the_notebook_in_labs(lab, tmp_path, monkeypatch):
    """Also beside a copy of it, such as JupyterLab makes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labs").mkdir()
    save(practice(DOUBLE, TOTAL), tmp_path / "labs")
    save(practice(), tmp_path / "labs", "lab00_practice-Copy1.ipynb")
    assert run("grade", lab).output.split()[-2:] == ["total", "3/3"]


def test_reset_writes_the_notebook_that_was_handed_out(tmp_path, monkeypatch):
    (tmp_path / "labs").mkdir()
    monkeypatch.chdir(tmp_path)
    done = run("release", "00", "--reset")
    assert done.exit_code == 0
    assert (tmp_path / "labs" / "lab00_practice.ipynb").is_file()


def test_release_says_where_it_must_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "run this in the repository" in run("release").output
