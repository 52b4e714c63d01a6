"""The directive {wrong-solutions}: every wrong solution and the check that rejected it.

    ```{wrong-solutions} results/wrong_solutions

Read from the record book/results/wrong_solutions.json: a section for each lab, a folded list for
each exercise, and in it of each wrong solution its name, what is wrong with it, the check's key
and the message. What is wrong is text for translators; key and message are what the program prints.
"""

import json
from itertools import groupby
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

Row = dict[str, str]
LAB = """## {title}

{num_wrong} wrong solutions, each rejected.
"""
EXERCISE = """:::::{{admonition}} `{name}`: {num_wrong} wrong solutions
:class: dropdown wrong-solutions

{rows}
:::::
"""
WRONG = """`{wrong}`
: {fault}

  ```{{code-block}} text
  :class: wrapped

{message}
  ```
"""


class WrongSolutions(SphinxDirective):
    """The record as Markdown that is parsed where it stands."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        path = Path(self.env.srcdir) / "book" / f"{self.arguments[0]}.json"
        self.env.note_dependency(str(path))
        rows = json.loads(path.read_text(encoding="utf-8"))["result"]["rows"]
        around = nodes.Element()
        text = StringList(as_markdown(rows).splitlines(), self.get_source_info()[0])
        self.state.nested_parse(text, self.content_offset, around, match_titles=True)
        return around.children


def as_markdown(rows: list[Row]) -> str:
    """Return sections and folded lists, in the order of the record."""
    parts = []
    for lab, of_lab in groupby(rows, lambda row: row["exercise"].split(".")[0]):
        in_lab = list(of_lab)
        parts.append(LAB.format(title=f"Lab {lab.removeprefix('lab')}", num_wrong=len(in_lab)))
        for exercise, of_exercise in groupby(in_lab, lambda row: row["exercise"]):
            wrong = list(of_exercise)
            name = exercise.split(".")[1]
            shown = "\n".join(map(_wrong, wrong))
            parts.append(EXERCISE.format(name=name, num_wrong=len(wrong), rows=shown))
    return "\n".join(parts)


def _wrong(row: Row) -> str:
    lines = [row["caught_by"], *row["message"].splitlines()]
    message = "\n".join(f"  {line}" for line in lines)
    return WRONG.format(wrong=row["wrong"], fault=row["fault"], message=message)


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("wrong-solutions", WrongSolutions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
