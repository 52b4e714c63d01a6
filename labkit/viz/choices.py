"""Several settings that a reader chooses, and the pane that belongs to each combination of them.

The same in a live notebook and in the static page: the index of every control is linked in the
browser (jsdlink) to stacks inside stacks, one level a setting, so no Python runs when one is moved.
Panes that are equal are kept once, and all panes and stacks share one layout, for a page holds the
whole state of every one of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import ipywidgets

WIDTH = "640px"
MANY = 4  # options that still fit beside each other
ROOM = 22  # widths of a letter that they may take together


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One control.

    Args:
        name: words in front of it.
        values: given to the function that makes a pane.
        options: words of each value.
        first: index of the value that is chosen at first.
    """

    name: str
    values: Sequence[Any]
    options: Sequence[str]
    first: int = 0


def choices(settings: Sequence[Setting], pane: Callable[..., str]) -> ipywidgets.VBox:
    """Controls above, the chosen pane below.

    Args:
        settings: one control each; the last one is the innermost.
        pane: HTML for one value of every setting, in their order.

    Raises:
        ValueError: if there is no setting, or one whose values and options differ in number.
    """
    for setting in settings:
        if len(setting.values) != len(setting.options) or not setting.values:
            counts = f"{len(setting.values)} values with {len(setting.options)} options"
            raise ValueError(f"{setting.name}: {counts}")
    if not settings:
        raise ValueError("0 settings: nothing to choose")
    plain = ipywidgets.HTML()  # lends its layout and style
    kept: dict[str, ipywidgets.HTML] = {}
    nodes: dict[tuple[int, ...], ipywidgets.Widget] = {}
    for place in product(*(range(len(setting.values)) for setting in settings)):
        chosen = zip(settings, place, strict=True)
        text = pane(*(setting.values[index] for setting, index in chosen))
        if text not in kept:
            kept[text] = ipywidgets.HTML(text, layout=plain.layout, style=plain.style)
        nodes[place] = kept[text]
    controls = [_control(setting) for setting in settings]
    for setting, control in zip(reversed(settings), reversed(controls), strict=True):
        nodes = _stacked(nodes, setting, control, plain.layout)
    rows = [_row(*pair) for pair in zip(settings, controls, strict=True)]
    layout = ipywidgets.Layout(max_width=WIDTH, margin="0 auto")
    return ipywidgets.VBox([*rows, nodes[()]], layout=layout)


def _stacked(
    nodes: dict[tuple[int, ...], ipywidgets.Widget],
    setting: Setting,
    control: ipywidgets.Widget,
    layout: ipywidgets.Layout,
) -> dict[tuple[int, ...], ipywidgets.Widget]:
    """One level up: stacks of the nodes that differ in their last index only."""
    above: dict[tuple[int, ...], list[ipywidgets.Widget]] = {}
    for place, node in nodes.items():
        above.setdefault(place[:-1], []).append(node)
    stacks = {}
    for place, children in above.items():
        stack = ipywidgets.Stack(children, selected_index=setting.first, layout=layout)
        ipywidgets.jsdlink((control, "index"), (stack, "selected_index"))
        stacks[place] = stack
    return stacks


def _control(setting: Setting) -> ipywidgets.Widget:
    longest = max(map(len, setting.options))
    width = max(4.0, 2 + 0.6 * longest)
    few = len(setting.options) <= MANY and len(setting.options) * width <= ROOM
    kind = ipywidgets.ToggleButtons if few else ipywidgets.Dropdown
    control = kind(options=list(setting.options), index=setting.first)
    if few:
        control.style.button_width = f"{width:g}em"
    return control


def _row(setting: Setting, control: ipywidgets.Widget) -> ipywidgets.HBox:
    # A control's own description would be typeset by MathJax 2; a page with MathJax 3 breaks on it.
    name = ipywidgets.HTML(setting.name, layout=ipywidgets.Layout(width="10.5em"))
    layout = ipywidgets.Layout(flex_flow="row wrap", align_items="center")
    return ipywidgets.HBox([name, control], layout=layout)
