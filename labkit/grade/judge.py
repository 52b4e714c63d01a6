"""The verdict on one exercise, from the text of its answer alone."""

from dataclasses import asdict, dataclass
from typing import Any

from labkit.grade.answers import Source
from labkit.grade.catalogue import hints, message
from labkit.grade.check import CheckFailed, Exercise, Learner, line


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What an answer got, and why.

    Args:
        lines: one an assertion that held, as a check cell prints them.
        key: of the message in the catalogue; "" for a pass.
    """

    exercise: str
    points: int
    of: int
    lines: tuple[str, ...]
    key: str = ""
    message: str = ""
    hints: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.key

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def judge(exercise: Exercise, answer: Source | None) -> Verdict:
    """Run the check on an answer; None is an answer cell that is not there.

    Raises:
        RuntimeError: if the check asserts nothing.
    """
    lines: list[str] = []
    try:
        if answer is None:
            raise CheckFailed("run.missing", name=exercise.name)
        for name in exercise.check(Learner(answer)):
            lines.append(line(exercise, name))
    except CheckFailed as failure:
        return _failed(exercise, lines, failure.key, str(failure))
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        # What the learner returned has not the shape that the check takes apart.
        told = message("run.unreadable", {"error": f"{type(error).__name__}: {error}"})
        return _failed(exercise, lines, "run.unreadable", told)
    if not lines:
        raise RuntimeError(f"the check of {exercise.id} asserts nothing")
    points = exercise.points
    return Verdict(exercise=exercise.id, points=points, of=points, lines=tuple(lines))


def _failed(exercise: Exercise, lines: list[str], key: str, told: str) -> Verdict:
    return Verdict(
        exercise=exercise.id,
        points=0,
        of=exercise.points,
        lines=tuple(lines),
        key=key,
        message=told,
        hints=tuple(hints(key)),
    )
