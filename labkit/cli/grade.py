"""python -m labkit grade: points for a lab notebook, wherever it lies."""

from pathlib import Path

import click


@click.command()
@click.argument("notebook", type=click.Path(path_type=Path))
@click.option(
    "--mine", is_flag=True, help="Use my accepted answers of other labs, not the reference."
)
def grade(notebook: Path, mine: bool) -> None:
    """Judge the answers in NOTEBOOK. Exit code 1 unless all points are reached.

    Feedback is written beside it: NAME.feedback.md, and NAME.feedback.json for programs.
    """
    from labkit.grade.grading import grade as judge_all
    from labkit.grade.report import summary, write_feedback

    result = judge_all(notebook, mine=mine)
    verdicts = [verdict.as_dict() for verdict in result.verdicts]
    for line in summary(verdicts):
        click.echo(line)
    write_feedback(notebook, verdicts)
    if not result.full:
        raise SystemExit(1)
