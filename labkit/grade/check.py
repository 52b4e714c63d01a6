"""The contract of an exercise: how its check is declared, run, and answered with a message.

Declared in labkit/grade/labNN.py, in a tuple EXERCISES (lab00.py is the smallest lab):

    def _program(group, double, x):              # on each rank, with the learner's object
        with CommLedger() as ledger:
            y = double(x, group)
        return y, ledger.bytes_sent()            # plain data: tensors, numbers, Calls, events

    def _check_double(learner):                  # in the parent, which executes no learner code
        for rank, (y, sent) in enumerate(learner.run(_program, 4, x)):
            expect("lab00.double.values", y, 2 * x, rank=rank)
        yield "values"                           # prints `lab00.double.values: ok`

Run by `check("lab00.double", double)` in a notebook, which carries the object to the ranks by
value, and by grading on a Source (answers.py): each rank executes the answer cell's text and takes
the object called `name` from it; several objects are a tuple or dict of them. The ranks are fresh
processes over gloo, with limits on time, memory and output, and the mismatch detector on. A program
and its arguments must be importable or plain data: no lambdas, no closures.

Answered by CheckFailed(key, **values), mostly raised by `expect`. The text of a key stands in
messages/labNN.toml: expected, got, the likeliest cause, never the answer; hints in steps. The keys
of messages/common.toml (run.raised, run.hang, run.mismatch: ranks disagree on the next call, ...)
need no entry of the lab's. A check may catch CheckFailed, look at its .key and raise its own.

Proved by the bank of wrong and right solutions (bank.py); masters are told of in release.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from labkit.grade.catalogue import message

TIMEOUT_S = 3.0


class CheckFailed(AssertionError):
    """An exercise is not solved: which message, and the values in it."""

    def __init__(self, key: str, **values: Any) -> None:
        super().__init__(message(key, values))
        self.key = key
        self.values = values

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the message, and nothing of how the check is made."""
        return [f"CheckFailed {self.key}", str(self)]


class Learner:
    """The learner's object, wherever it runs.

    Args:
        carried: the object itself, from a notebook's kernel, or the Source that makes it.
    """

    def __init__(self, carried: Any) -> None:
        self._carried = carried

    def run(
        self, program: Callable, world_size: int, *args: Any, timeout: float = TIMEOUT_S
    ) -> list[Any]:
        """Call program(group, learner's object, *args) on every rank of a fresh world.

        Args:
            program: a function of a module that ranks can import.
            args: the same on every rank.
            timeout: seconds until it counts as a hang, from when all ranks are ready.

        Returns:
            What program returned, in rank order.

        Raises:
            CheckFailed: if the learner's code raises, hangs, dies, exceeds a limit, or changes what
                it is judged by.
        """
        from labkit.grade.ranks import run

        return run(program, self._carried, world_size, args, timeout)


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise of a lab.

    Args:
        id: "lab02.ring_all_reduce".
        name: of the object in the answer cell.
        points: all for a pass, else none.
        check: yields the name of each assertion that held, raises CheckFailed at one that did not.
    """

    id: str
    name: str
    points: int
    check: Callable[[Learner], Iterator[str]]


def check(exercise_id: str, learner_object: Any) -> None:
    """Check the learner's object; print one line an assertion.

    Raises:
        ValueError: if there is no such exercise.
        CheckFailed: with the message of the first assertion that does not hold.
    """
    exercise = find_exercise(exercise_id)
    for name in exercise.check(Learner(learner_object)):
        print(line(exercise, name))


def line(exercise: Exercise, assertion: str) -> str:
    """What a check cell prints for an assertion that held: no language, no number."""
    return f"{exercise.id}.{assertion}: ok"


def find_exercise(exercise_id: str) -> Exercise:
    """The exercise of this id.

    Raises:
        ValueError: naming the exercises that there are.
    """
    exercises = exercises_of(exercise_id.partition(".")[0])
    for exercise in exercises:
        if exercise.id == exercise_id:
            return exercise
    known = ", ".join(exercise.id for exercise in exercises)
    raise ValueError(f"there is no exercise {exercise_id!r}; the lab has {known}")


def exercises_of(lab: str) -> tuple[Exercise, ...]:
    """The exercises of "lab02", in the order of the notebook.

    Raises:
        ValueError: if there is no such lab.
    """
    module = f"labkit.grade.{lab}"
    if not (lab.startswith("lab") and lab[3:].isdigit()) or find_spec(module) is None:
        raise ValueError(f"there is no lab {lab!r}; a lab is called lab02, say")
    return import_module(module).EXERCISES


def expect(key: str, got: Any, expected: Any, *, atol: float = 0.0, **values: Any) -> None:
    """Fail with this key unless got is expected; both are told.

    Args:
        got: a tensor of the same shape and dtype where expected is one, else compared by ==.
        atol: largest absolute difference of two tensors or two numbers; 0 means equal.
        values: further ones for the message.

    Raises:
        CheckFailed: with `expected` and `got` among its values.
    """
    if isinstance(expected, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            raise CheckFailed("run.type", expected="a tensor", got=type(got).__name__)
        if got.shape != expected.shape or got.dtype != expected.dtype:
            kinds = (f"{list(x.shape)} of {str(x.dtype)[6:]}" for x in (expected, got))
            raise CheckFailed("run.type", **dict(zip(("expected", "got"), kinds, strict=True)))
        same = bool(((got - expected).abs() <= atol).all()) if atol else torch.equal(got, expected)
    elif atol:
        same = isinstance(got, int | float) and abs(got - expected) <= atol
    else:
        same = type(got) is type(expected) and got == expected
    if not same:
        raise CheckFailed(key, expected=_short(expected), got=_short(got), **values)


def _short(value: Any) -> str:
    """A value in few words: at most eight numbers of a tensor."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    numbers = [f"{x:.6g}" for x in value.flatten()[:8].tolist()]
    rest = ", …" if value.numel() > 8 else ""
    return f"[{', '.join(numbers)}{rest}]"
