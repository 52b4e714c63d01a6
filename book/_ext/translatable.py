"""Let translators see the cells of every table.

Only text that knows its source file enters the catalogue of messages. The parser forgets to note it
for the cells of a table that stands inside a box, such as an admonition; such a table would stay
English in a translated book. Each text without a source takes that of the nearest node around it.
"""

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class NoteSources(SphinxTransform):
    """Runs before Sphinx looks for messages (10)."""

    default_priority = 5

    def apply(self, **kwargs: Any) -> None:
        for node in self.document.findall(nodes.TextElement):
            around = node.parent
            while node.source is None and around is not None:
                node.source, node.line = around.source, around.line
                around = around.parent


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_transform(NoteSources)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
