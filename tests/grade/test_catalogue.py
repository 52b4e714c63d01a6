"""The catalogue promises: every key that a check raises has a text, and the values that it names.

Oracle: the source of the checks, read and not run.
"""

import ast
import string
from pathlib import Path

import pytest

from labkit.grade.catalogue import entries, hints, message

GRADE = Path(__file__).parents[2] / "labkit" / "grade"
LABS = ["run", *sorted(path.stem for path in (GRADE / "messages").glob("lab*.toml"))]
ADDED_BY_EXPECT = {"expected", "got"}


def raised():
    """(key, names of its values or None where they cannot be read, file) of every failure."""
    for path in sorted(GRADE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id not in ("CheckFailed", "expect") or not node.args:
                continue
            key = node.args[0]
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                names = {k.arg for k in node.keywords}
                told = None if None in names else names
                yield key.value, told, node.func.id, path.name


def fields(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("case", list(raised()), ids=lambda case: f"{case[3]}:{case[0]}")
def test_what_is_raised_has_its_text_and_values(case):
    key, names, by, _ = case
    wanted = fields(entries(key.partition(".")[0])[key]["text"])
    if names is not None:
        assert wanted <= names | (ADDED_BY_EXPECT if by == "expect" else set())


@pytest.mark.parametrize("lab", LABS)
def test_entries_are_whole(lab):
    for key, entry in entries(lab).items():
        assert key.startswith(f"{lab}.")
        assert set(entry) <= {"text", "hints"}
        assert entry["text"].strip()
        assert all(isinstance(hint, str) and hint for hint in entry.get("hints", []))


def test_a_message_is_filled_in():
    assert message("run.type", {"expected": 1, "got": "{x}"}) == "Expected 1, got {x}."
    assert hints("lab00.total.bytes") == ["An all-gather sends every tensor to everybody."]


def test_unknown_keys_and_missing_values_are_named():
    with pytest.raises(ValueError, match=r"no message 'run\.nothing'"):
        message("run.nothing", {})
    with pytest.raises(ValueError, match=r"'run\.type' needs a value 'got'"):
        message("run.type", {"expected": 1})
