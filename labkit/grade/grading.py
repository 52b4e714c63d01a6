"""Grade a notebook that lies anywhere, without a kernel; keep what was accepted.

Accepted answers are written beside the notebook, .mine/lab02/ring_all_reduce.py. A later lab that
is graded with mine=True uses them in place of the reference that it imports under the same name.
"""

from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from labkit.grade.answers import Source
from labkit.grade.check import exercises_of
from labkit.grade.judge import Verdict, judge
from labkit.grade.notebook import answers, find_pristine, lab_of, pristine_of, read_notebook

MINE = ".mine"


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The verdicts on one notebook, in the order of its exercises."""

    lab: str
    verdicts: tuple[Verdict, ...]

    @property
    def full(self) -> bool:
        return all(verdict.passed for verdict in self.verdicts)


def grade(path: Path, *, mine: bool = False) -> Grade:
    """Judge every exercise of a notebook.

    Raises:
        ValueError: if it is not a notebook, or not one of the labs.
        FileNotFoundError: if it is not there.
    """
    notebook = read_notebook(path)
    pristine_path = find_pristine(notebook, path)
    if pristine_path is None:
        raise ValueError(
            f"{path} is not one of the labs: neither its name nor its metadata says so"
        )
    pristine = read_notebook(pristine_path)
    lab = lab_of(pristine_path.stem)
    sources = answers(notebook, pristine, _accepted(path.parent, lab) if mine else None)
    verdicts = []
    for exercise in exercises_of(lab):
        source = sources[exercise.id]
        verdicts.append(judge(exercise, source))
        if source is not None and verdicts[-1].passed:
            _keep(path.parent, exercise.id, source)
    return Grade(lab=lab, verdicts=tuple(verdicts))


def reset(lab: str, folder: Path) -> tuple[Path, Path | None]:
    """Put the learner notebook of a lab back as it was handed out.

    Returns:
        The notebook, and where the old one was moved to, if there was one.

    Raises:
        ValueError: if there is no such lab.
    """
    pristine = pristine_of(lab)
    notebook = folder / pristine.name
    kept = None
    if notebook.is_file() and notebook.read_bytes() != pristine.read_bytes():
        kept = _free(folder / MINE / pristine.name)
        kept.parent.mkdir(parents=True, exist_ok=True)
        notebook.replace(kept)
    notebook.write_bytes(pristine.read_bytes())
    return notebook, kept


def _free(path: Path) -> Path:
    """This path, or with the first number that no earlier reset has used."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return next(free for free in chain([path], numbered) if not free.exists())


def _keep(folder: Path, exercise_id: str, source: Source) -> None:
    lab, _, name = exercise_id.partition(".")
    file = folder / MINE / lab / f"{name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n\n".join(source.pieces) + "\n", encoding="utf-8")


def _accepted(folder: Path, lab: str) -> dict[str, str]:
    """Accepted answers of the other labs by name; of two with one name, the later lab's."""
    files = sorted((folder / MINE).glob("lab*/*.py"))
    return {f.stem: f.read_text(encoding="utf-8") for f in files if f.parent.name != lab}
