"""python -m labkit release: make the lab notebooks from their masters."""

from pathlib import Path

import click


@click.command()
@click.argument("lab", required=False)
@click.option("--reset", is_flag=True, help="Only put the learner notebook of LAB back as it was.")
def release(lab: str | None, reset: bool) -> None:
    """Build the notebooks of LAB (02, say), or of all labs, in the repository that this runs in."""
    labs = Path.cwd() / "labs"
    if not labs.is_dir():
        raise ValueError(f"there is no folder labs in {Path.cwd()}; run this in the repository")
    if reset:
        _reset(lab, labs)
        return
    from labkit.grade import release as releasing

    for master in _masters(lab, labs):
        releasing.release(master, labs)
        click.echo(f"{master.stem}: solution and learner notebook written")


def _masters(lab: str | None, labs: Path) -> list[Path]:
    wanted = "*" if lab is None else f"lab{lab.removeprefix('lab').zfill(2)}_*"
    found = sorted((labs / "masters").glob(f"{wanted}.md"))
    if not found:
        known = ", ".join(path.stem for path in sorted((labs / "masters").glob("*.md")))
        raise ValueError(f"there is no lab {lab!r} in labs/masters; there are {known or 'none'}")
    return found


def _reset(lab: str | None, labs: Path) -> None:
    from labkit.grade.grading import reset

    if lab is None:
        raise ValueError("which lab is to be reset? 02, say")
    notebook, kept = reset(lab, labs)
    click.echo(f"{notebook} is as it was handed out" + (f"; yours is {kept}" if kept else ""))
