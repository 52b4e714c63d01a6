"""Hand a value that a page computed over to the sentences of that page.

A cell of a book page calls numbers(ring_bytes=1536); a sentence of the same page says
{num}`ring_bytes` or, with a format, {num}`ring_bytes:,`. Nothing is printed.

The values travel as invisible outputs of the cell, so they are kept wherever the outputs are kept:
a page taken from the execution cache has them too. book/_ext/numbers_role.py is the other end.
"""

import builtins
import json
from typing import Any

# Outputs whose type begins so are set apart by the book's parser and never drawn.
HIDDEN = "application/papermill.record/"


def numbers(**values: Any) -> None:
    """Publish values under their names, for the {num} role of the page that runs this cell.

    Args:
        values: ints, floats, strings, or scalars of torch and numpy.

    Raises:
        ValueError: for a value that a sentence cannot hold.
    """
    plain = {name: _plain(name, value) for name, value in values.items()}
    display = getattr(builtins, "display", None)  # IPython puts it there; a script has no page
    if display is None:
        return
    for name, value in plain.items():
        label = {"scrapbook": {"name": name, "mime_prefix": HIDDEN}}
        display({f"{HIDDEN}text/plain": json.dumps(value)}, raw=True, metadata=label)


def _plain(name: str, value: Any) -> int | float | str:
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"{name}: a sentence takes a number or a string, not {value!r}")
    return value
