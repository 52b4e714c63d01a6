"""The bank reads what a file says of itself. Oracle: files written for it."""

import pytest

from labkit.grade.bank import read_bank, table, try_solution

WRONG = '"""expect: lab00.double.values\n\nIt returns x."""\n\ndef double(x):\n    return x + 1\n'


def put(folder, name, text):
    path = folder / "lab00" / "double" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_wrong_and_right_ones(tmp_path):
    put(tmp_path, "one_more", WRONG)
    put(tmp_path, "right_sum", "def double(x):\n    return x + x\n")
    wrong, right = read_bank(tmp_path)
    assert (wrong.exercise, wrong.name, wrong.expect) == (
        "lab00.double",
        "one_more",
        "lab00.double.values",
    )
    assert try_solution(right).passed
    (row,) = table([wrong, right])
    assert row["caught_by"] == "lab00.double.values"
    assert "expected [0], got [1]" in row["message"]


def test_a_wrong_one_must_say_what_it_expects(tmp_path):
    put(tmp_path, "silent", "def double(x):\n    return x\n")
    with pytest.raises(ValueError, match=r"silent\.py: a wrong solution begins with"):
        read_bank(tmp_path)
