"""The bank of solutions: wrong ones, each with the message that rejects it, and right ones.

    tests/mutants/lab02/ring_all_reduce/no_last_round.py     must be rejected
    tests/mutants/lab02/ring_all_reduce/right_generator.py   must pass

A wrong one's docstring begins with `expect: KEY`, the key of its message in the catalogue. What is
wrong with it follows, as a paragraph.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.grade.answers import choose, whole
from labkit.grade.check import find_exercise
from labkit.grade.judge import Verdict, judge

EXPECT = re.compile(r"expect: (\S+)\n\n(.+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Solution:
    """One file of the bank.

    Args:
        exercise: "lab02.ring_all_reduce".
        name: of the file, without ".py".
        text: a whole answer cell.
        expect: key of the message that rejects it; "" for a right one.
        fault: what is wrong with it, as a sentence; "" for a right one.
    """

    exercise: str
    name: str
    text: str
    expect: str
    fault: str


def read_bank(folder: Path) -> list[Solution]:
    """All solutions below tests/mutants, in the order of their paths.

    Raises:
        ValueError: if a wrong one does not say what it expects, or what is wrong with it.
    """
    return [_read(path) for path in sorted(folder.glob("lab*/*/*.py"))]


def try_solution(solution: Solution) -> Verdict:
    """The verdict on one, as if it stood in a notebook."""
    exercise = find_exercise(solution.exercise)
    return judge(exercise, choose(whole(solution.text), exercise.name, []))


def table(solutions: Iterable[Solution]) -> list[dict[str, Any]]:
    """Wrong solutions, their faults, the assertion that caught each, and what the learner reads."""
    rows = []
    for solution in solutions:
        if solution.expect:
            verdict = try_solution(solution)
            rows.append(
                {
                    "exercise": solution.exercise,
                    "wrong": solution.name,
                    "fault": solution.fault,
                    "caught_by": verdict.key,
                    "message": verdict.message,
                }
            )
    return rows


def _read(path: Path) -> Solution:
    text = path.read_text(encoding="utf-8")
    told = ast.get_docstring(ast.parse(text)) or ""
    expect = EXPECT.fullmatch(told)
    if not expect and not path.stem.startswith("right_"):
        raise ValueError(
            f"{path}: a wrong solution begins with a docstring: `expect: KEY`, an empty line, and "
            "what is wrong with it"
        )
    lab, exercise = path.parts[-3:-1]
    return Solution(
        exercise=f"{lab}.{exercise}",
        name=path.stem,
        text=text,
        expect=expect[1] if expect else "",
        fault=" ".join(expect[2].split()) if expect else "",
    )
