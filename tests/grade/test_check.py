"""check promises: one fixed line an assertion, or a message that tells both values and no answer.

Oracle: by construction, the practice lab.
"""

import pytest
import torch

from labkit.grade.check import CheckFailed, check, exercises_of, expect, find_exercise


def test_it_prints_one_line_an_assertion(capsys):
    check("lab00.double", lambda x: x + x)
    assert capsys.readouterr().out == "lab00.double.values: ok\nlab00.double.untouched: ok\n"


def test_it_prints_what_held_before_the_first_failure(capsys):
    with pytest.raises(CheckFailed, match=r"expected \[0\], got \[1\]") as failed:
        check("lab00.double", lambda x: 2 * x + 1)
    assert failed.value.key == "lab00.double.values"
    assert capsys.readouterr().out == ""


def test_a_notebook_shows_the_message_alone():
    failure = CheckFailed("run.type", expected="a", got="b")
    assert failure._render_traceback_() == ["CheckFailed run.type", "Expected a, got b."]


def test_unknown_exercises_and_labs_are_named():
    with pytest.raises(
        ValueError, match=r"'lab00\.triple'; the lab has lab00\.double, lab00\.total"
    ):
        find_exercise("lab00.triple")
    for lab in ("lab98", "check", "..", ""):
        with pytest.raises(ValueError, match="there is no lab"):
            exercises_of(lab)


X = torch.tensor([1.0, 2.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("got", "expected", "atol"),
    [
        (X, X.clone(), 0.0),
        (X + 1e-13, X, 1e-12),
        (3, 3, 0.0),
        (0.3, 0.1 + 0.2, 1e-12),
        ("a", "a", 0),
    ],
)
def test_expect_holds(got, expected, atol):
    expect("lab00.total.values", got, expected, atol=atol, rank=0, world_size=1)


@pytest.mark.parametrize(
    ("got", "expected", "atol", "key"),
    [
        (X + 1e-11, X, 1e-12, "lab00.total.values"),
        (X * float("nan"), X, 1e-12, "lab00.total.values"),
        (X.float(), X, 1.0, "run.type"),
        (X[:1], X, 1.0, "run.type"),
        ([1.0, 2.0], X, 1.0, "run.type"),
        (4, 3, 0.5, "lab00.total.values"),
        ("3", 3, 0.5, "lab00.total.values"),
        (True, 1, 0.0, "lab00.total.values"),
        (float("nan"), 3, 0.5, "lab00.total.values"),
    ],
)
def test_expect_fails(got, expected, atol, key):
    with pytest.raises(CheckFailed) as failed:
        expect(key, got, expected, atol=atol, rank=0, world_size=1)
    assert failed.value.key == key


def test_a_long_tensor_is_told_in_few_words():
    with pytest.raises(CheckFailed, match=r"got \[0, 1, 2, 3, 4, 5, 6, 7, …\]"):
        expect("lab00.double.values", torch.arange(41), torch.zeros(41).long(), size=41)
