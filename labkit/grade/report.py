"""Points and feedback: what a learner reads after grading. Verdicts are plain data here."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def summary(verdicts: Iterable[dict[str, Any]]) -> list[str]:
    """One line an exercise, its message and first hint below it if it failed, and the total."""
    lines = []
    points = of = 0
    for verdict in verdicts:
        points, of = points + verdict["points"], of + verdict["of"]
        lines.append(f"{verdict['exercise']:32} {verdict['points']}/{verdict['of']}")
        if verdict["key"]:
            lines += [f"    {line}" for line in f"{verdict['message']}".splitlines()]
            lines += [f"    Hint: {hint}" for hint in list(verdict["hints"])[:1]]
    return [*lines, f"{'total':32} {points}/{of}"]


def write_feedback(notebook: Path, verdicts: list[dict[str, Any]]) -> None:
    """Write NAME.feedback.md and NAME.feedback.json beside the notebook NAME.ipynb."""
    told = [{key: value for key, value in v.items() if key != "notebook"} for v in verdicts]
    text = json.dumps(told, indent=1, ensure_ascii=False) + "\n"
    notebook.with_suffix(".feedback.json").write_text(text, encoding="utf-8")
    parts = [f"# {notebook.stem}\n", *map(_section, told)]
    notebook.with_suffix(".feedback.md").write_text("\n".join(parts), encoding="utf-8")


def _section(verdict: dict[str, Any]) -> str:
    lines = [f"## {verdict['exercise']}: {verdict['points']}/{verdict['of']}", ""]
    lines += [f"- `{line}`" for line in verdict["lines"]]
    if verdict["key"]:
        lines += [f"- `{verdict['key']}`", "", "```text", verdict["message"], "```"]
        for number, hint in enumerate(verdict["hints"], 1):
            lines += ["", "<details>", f"<summary>Hint {number}</summary>", "", hint, "</details>"]
    return "\n".join(lines) + "\n"
