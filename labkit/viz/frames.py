"""A row of pictures under a slider, the same in a live notebook and in the static page.

The slider's value is linked in the browser (jslink) to the index of a Stack, so no Python runs when
it moves. Each picture is SVG inside an <img> with its own alt text; its label is the line under it.
"""

import base64
import html
from collections.abc import Sequence
from typing import Any

import ipywidgets
from matplotlib.figure import Figure

from labkit.viz.style import svg
from labkit.viz.words import word

WIDTH = "560px"
# The class keeps the book's theme from dimming the picture on a dark page: its ground stays white.
_FRAME = (
    '<div style="padding:4px;background:#fff;color:#222">'
    '<img class="dark-light" alt="{alt}" src="{address}" '
    'style="width:100%;height:auto"/>'
    '<div style="line-height:1.5;white-space:normal;text-align:center">{label}</div></div>'
)


def frames(
    figures: Sequence[Figure], labels: Sequence[str], alts: Sequence[str]
) -> ipywidgets.VBox:
    """Figures that a slider steps through.

    Args:
        figures: one a step, drawn at the same size.
        labels: one line a figure, shown under it.
        alts: one alt text a figure.

    Raises:
        ValueError: if the three differ in length, or there is no figure.
    """
    if not len(figures) == len(labels) == len(alts) or not figures:
        raise ValueError(
            f"{len(figures)} figures with {len(labels)} labels and {len(alts)} alt texts"
        )
    panes = [_pane(*frame) for frame in zip(figures, labels, alts, strict=True)]
    stack = ipywidgets.Stack(panes, selected_index=0)
    slider = ipywidgets.IntSlider(
        value=0,
        min=0,
        max=len(figures) - 1,
        tooltip=word("frames.step"),
        layout=ipywidgets.Layout(width="100%"),
    )
    ipywidgets.jslink((slider, "value"), (stack, "selected_index"))
    # A slider's own description would be typeset by MathJax 2; a page with MathJax 3 breaks on it.
    name = ipywidgets.HTML(word("frames.step"))
    layout = ipywidgets.Layout(max_width=WIDTH, margin="0 auto")
    return ipywidgets.VBox([ipywidgets.HBox([name, slider]), stack], layout=layout)


def _pane(figure: Figure, label: str, alt: str) -> ipywidgets.HTML:
    data = base64.b64encode(svg(figure).encode()).decode()
    return ipywidgets.HTML(picture_html(f"data:image/svg+xml;base64,{data}", label, alt))


def picture_html(address: str, label: str, alt: str) -> str:
    """A picture on white ground and the line under it."""
    words = {"alt": html.escape(alt, quote=True), "label": html.escape(label)}
    return _FRAME.format(address=address, **words)


class Shown:
    """A widget whose plain text is fixed, so that a notebook's output is the same each time."""

    def __init__(self, widget: ipywidgets.Widget, text: str) -> None:
        self.widget = widget
        self.text = text

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = self.widget._repr_mimebundle_(**kwargs)
        return {**bundle, "text/plain": self.text}


def show(widget: ipywidgets.Widget, text: str) -> Shown:
    """What a cell ends with: the widget, printed as this text where widgets cannot be drawn."""
    return Shown(widget, text)
