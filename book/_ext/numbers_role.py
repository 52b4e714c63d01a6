"""The role {num}: a number in a sentence, read from what the build computed.

{num}`ring_bytes:,`                 a value that a cell of this page gave to labkit.viz.numbers
{num}`results/launch:median_s:.2f`  a field of the record book/results/launch.json (nested: a.b)

The last part is a Python format and may be missing. A name or record that does not exist is a
warning, so a strict build fails. The role leaves a mark and a transform replaces the marks once
the page has been executed; a translated sentence is parsed on its own, brings its own marks, and
is read beside the same page, so it gets the same numbers. A page that is taken from the execution
cache brings its values with its outputs.
"""

import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

logger = logging.getLogger(__name__)
FORM = re.compile(
    r"(results/(?P<record>[\w/.-]+):)?(?P<key>[\w.+]+(, [\w.+ ]+)*)(:(?P<format>.+))?"
)


class Number(nodes.General, nodes.Inline, nodes.Element):
    """The place of a number that is not known before the page has been executed."""


class NumberRole(SphinxRole):
    """Leaves the mark."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        mark = Number(self.rawtext, wanted=self.text)
        self.set_source_info(mark)
        return [mark], []


class FillNumbers(SphinxTransform):
    """Replaces every mark by its number, after translation (20) and before titles are collected."""

    default_priority = 700

    def apply(self, **kwargs: Any) -> None:
        marks = list(self.document.findall(Number))
        if not marks:
            return
        values = page_values(self.app, self.env.docname)
        for mark in marks:
            try:
                text = self._text(mark["wanted"], values)
            except (KeyError, ValueError, OSError) as error:
                reason = error.args[0] if isinstance(error, KeyError) else error
                logger.warning("num: %s", reason, location=mark, type="num")
                text = "?"
            mark.replace_self(nodes.Text(text))

    def _text(self, wanted: str, values: dict[str, Any]) -> str:
        form = FORM.fullmatch(wanted)
        if form is None:
            raise ValueError(
                f"cannot read {wanted!r}; it is name, name:format or results/record:name"
            )
        if form["record"]:
            values = self._record(form["record"])
        value: Any = values
        for part in form["key"].split("."):
            if not isinstance(value, dict) or part not in value:
                raise KeyError(f"{form['key']!r} is not among {sorted(values)} ({wanted})")
            value = value[part]
        return format(value, form["format"] or "")

    def _record(self, name: str) -> dict[str, Any]:
        path = Path(self.app.srcdir) / "book" / "results" / f"{name}.json"
        self.env.note_dependency(str(path))  # a new measurement makes the page out of date
        return json.loads(path.read_text())


def page_values(app: Sphinx, docname: str) -> dict[str, Any]:
    """Return what the cells of one page published, by name."""
    published = getattr(app.env, "nb_metadata", {}).get(docname, {}).get("glue", [])
    if not published:
        return {}
    path = Path(app.outdir).parent / "jupyter_execute" / f"{docname}.glue.json"
    outputs = json.loads(path.read_text())
    return {name: json.loads(outputs[name]["data"]["text/plain"]) for name in published}


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(Number)
    app.add_role("num", NumberRole())
    app.add_transform(FillNumbers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
