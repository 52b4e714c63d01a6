"""The directive {labs}: what labs there are, read from their notebooks, each with its download.

    ```{labs}            a section for each notebook labs/labNN_name.ipynb
    ```{labs} 02         a box for the lab of one chapter; nothing while it has none

A reader gets the notebook that learners complete, byte for byte, by a link that works without a
server; the solutions are not copied. A new notebook appears on the next build.
"""

import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

SECTION = """## {title}

{goal}

{num_exercises} exercises, {points} points. Read first: {chapter}.

Download {download}.
"""
BOX = """:::{{admonition}} The lab of this chapter
:class: tip lab

{goal}

{num_exercises} exercises, {points} points. Download {download}; [Labs](/book/labs.md) says how to
open it and how to be graded.
:::
"""


class Labs(SphinxDirective):
    """One lab or all of them, as Markdown that is parsed where it stands."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_reread()  # a notebook may have come since
        root = Path(self.env.srcdir)
        wanted = f"lab{self.arguments[0]}_*" if self.arguments else "lab*"
        form = BOX if self.arguments else SECTION
        shown = [
            form.format(**described(path, root))
            for path in sorted(root.glob(f"labs/{wanted}.ipynb"))
        ]
        around = nodes.Element()
        text = StringList("\n".join(shown).splitlines(), self.get_source_info()[0])
        self.state.nested_parse(text, self.content_offset, around, match_titles=True)
        return around.children


def described(notebook: Path, root: Path) -> dict[str, Any]:
    """Return what a lab's notebook says about itself."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    title, goal, *_ = "".join(cells[0]["source"]).split("\n\n")
    points = [cell["metadata"]["nbgrader"]["points"] for cell in checks(cells)]
    number = re.match(r"lab(\d\d)_", notebook.stem)[1]
    chapters = sorted(root.glob(f"book/part*/{number}_*.md"))
    names = [f"{{doc}}`/{path.relative_to(root).with_suffix('')}`" for path in chapters]
    return {
        "title": title.removeprefix("# "),
        "goal": goal.replace("\n", " "),
        "num_exercises": len(points),
        "points": round(sum(points)),
        "chapter": ", ".join(names) or f"chapter {int(number)}",
        "download": f"{{download}}`{notebook.name} </labs/{notebook.name}>`",
    }


def checks(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the check cells, one an exercise."""
    return [cell for cell in cells if "check" in cell["metadata"]]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("labs", Labs)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
