"""Points and feedback as text and JSON. Oracle: written by hand."""

import json

from labkit.grade.report import summary, write_feedback

PASSED = {"exercise": "lab00.double", "points": 1, "of": 1, "lines": ["lab00.double.values: ok"]}
PASSED |= {"key": "", "message": "", "hints": []}
FAILED = {"exercise": "lab00.total", "points": 0, "of": 2, "lines": [], "key": "run.type"}
FAILED |= {"message": "Expected a,\ngot b.", "hints": ["first", "second"]}


def test_the_summary_shows_the_message_and_the_gentlest_hint():
    assert [" ".join(line.split()) for line in summary([PASSED, FAILED])] == [
        "lab00.double 1/1",
        "lab00.total 0/2",
        "Expected a,",
        "got b.",
        "Hint: first",
        "total 1/3",
    ]


def test_feedback_lies_beside_the_notebook(tmp_path):
    write_feedback(tmp_path / "mine.ipynb", [PASSED, {**FAILED, "notebook": "/somewhere"}])
    assert json.loads((tmp_path / "mine.feedback.json").read_text()) == [PASSED, FAILED]
    text = (tmp_path / "mine.feedback.md").read_text()
    assert text.index("- `lab00.double.values: ok`") < text.index("## lab00.total: 0/2")
    assert text.index("Hint 1") < text.index("first") < text.index("Hint 2") < text.index("second")
    assert "/somewhere" not in text
