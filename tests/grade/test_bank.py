"""The bank reads what a file says of itself. Oracle: files written for it."""

import pytest

from labkit.grade.bank import read_bank, table, try_solution

WRONG = (
    '"""expect: lab00.double.values\n\nIt adds one\nto x."""\n\ndef double(x):\n    return x + 1\n'
)


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
    assert (row["wrong"], row["fault"]) == ("one_more", "It adds one to x.")
    assert row["caught_by"] == "lab00.double.values"
    assert "expected [0], got [1]" in row["message"]


@pytest.mark.parametrize(
    "told", ["", '"""expect: lab00.double.values"""\n', '"""It is wrong."""\n']
)
def test_a_wrong_one_must_say_what_it_expects_and_what_is_wrong(told, tmp_path):
    put(tmp_path, "silent", f"{told}def double(x):\n    return x\n")
    with pytest.raises(ValueError, match=r"silent\.py: a wrong solution begins with"):
        read_bank(tmp_path)
