"""A verdict for whatever a check meets. Oracle: checks written for it."""

import pytest

from labkit.grade.answers import Source
from labkit.grade.check import Exercise, find_exercise
from labkit.grade.judge import judge

ANSWER = Source(name="total", pieces=("total = 3",))


def exercise(check):
    return Exercise(id="lab00.total", name="total", points=2, check=check)


def test_a_pass_has_all_points_and_the_lines():
    verdict = judge(exercise(lambda learner: iter(["values", "bytes"])), ANSWER)
    assert (verdict.points, verdict.of, verdict.key) == (2, 2, "")
    assert verdict.lines == ("lab00.total.values: ok", "lab00.total.bytes: ok")


def test_a_failure_keeps_the_lines_before_it():
    def check(learner):
        yield "values"
        raise TypeError("no + for str")

    verdict = judge(exercise(check), ANSWER)
    assert (verdict.points, verdict.key) == (0, "run.unreadable")
    assert verdict.lines == ("lab00.total.values: ok",)
    assert "TypeError: no + for str" in verdict.message


def test_a_missing_answer():
    assert judge(find_exercise("lab00.total"), None).key == "run.missing"


def test_a_check_that_asserts_nothing_is_a_fault_of_ours():
    with pytest.raises(RuntimeError, match=r"check of lab00\.total asserts nothing"):
        judge(exercise(lambda learner: iter([])), ANSWER)
