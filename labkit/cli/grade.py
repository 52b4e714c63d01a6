"""python -m labkit grade: points for a lab notebook, wherever it lies."""

import re
from pathlib import Path

import click


@click.command()
@click.argument("notebook")
@click.option(
    "--mine", is_flag=True, help="Use my accepted answers of other labs, not the reference."
)
def grade(notebook: str, mine: bool) -> None:
    """Judge the answers in NOTEBOOK: a file, or 02 for the notebook of lab 02 in the folder labs.

    Exit code 1 unless all points are reached, 2 if there is nothing to judge. Feedback is written
    beside it: NAME.feedback.md, and NAME.feedback.json for programs.
    """
    from labkit.grade.grading import grade as judge_all
    from labkit.grade.report import summary, write_feedback

    path = _file(notebook)
    result = judge_all(path, mine=mine)
    verdicts = [verdict.as_dict() for verdict in result.verdicts]
    for line in summary(verdicts):
        click.echo(line)
    write_feedback(path, verdicts)
    if not result.full:
        raise SystemExit(1)


def _file(notebook: str) -> Path:
    if not re.fullmatch(r"(lab)?\d+", notebook):
        return Path(notebook)
    from labkit.grade.notebook import pristine_of

    return Path("labs") / pristine_of(notebook).name
