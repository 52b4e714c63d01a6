"""Ranks on nodes: the groups along an axis, and which of their hops leave a node.

A box is a node, a disc a rank, its colour its group. A grey arc is a hop inside a node, an orange
one crosses to another node. What a rank sends along each axis decides what an order costs.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import ipywidgets
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from labkit.cost.placement import groups_of_axis, hops_of_group, slow_link_bytes
from labkit.viz.choices import Setting, choices
from labkit.viz.frames import picture_html
from labkit.viz.mesh import GROUP_COLOURS, in_words
from labkit.viz.schedule_svg import address
from labkit.viz.style import (
    COMMUNICATION,
    INK,
    PAPER,
    SMALL_WORD_SIZE,
    new_figure,
    plain_axes,
    put_word,
    svg,
)
from labkit.viz.words import bytes_in_words, word

GREY = "#999999"
GAP = 0.45  # between nodes, in ranks


def draw_nodes(
    axes: Axes, sizes: Mapping[str, int], order: Sequence[str], axis: str, *, ranks_per_node: int
) -> Axes:
    """One row of ranks, in boxes of nodes.

    Args:
        axes: drawn on, returned.
        sizes: ranks along each axis.
        order: the axes, the one of nearest neighbours last.
        axis: whose groups are shown.
    """
    plain_axes(axes)
    groups = groups_of_axis(sizes, order, axis)
    num_ranks = sum(map(len, groups))
    for first in range(0, num_ranks, ranks_per_node):
        left = _x(first, ranks_per_node) - 0.52
        box = Rectangle((left, -0.62), ranks_per_node + 0.04, 1.24, facecolor=PAPER)
        box.set(edgecolor=INK, linewidth=0.8, zorder=1)
        axes.add_patch(box)
        middle = left + ranks_per_node / 2 + 0.02
        put_word(axes, (middle, -1.0), word("nodes.node", n=first // ranks_per_node))
    for number, group in enumerate(groups):
        colour = GROUP_COLOURS[number % len(GROUP_COLOURS)]
        for hop in _drawn(axis, group):
            _arc(axes, hop, ranks_per_node)
        for rank in group:
            x = _x(rank, ranks_per_node)
            look: dict[str, Any] = {"markeredgecolor": INK, "markeredgewidth": 0.6, "zorder": 3}
            axes.plot(x, 0, "o", markersize=14, color=colour, **look)
            put_word(axes, (x, -0.03), str(rank), size=8)
    crossing, hops = _counts(groups, axis, ranks_per_node)
    told = {"order": ", ".join(order), "axis": axis, "crossing": crossing, "hops": hops}
    axes.set_title(word("nodes.title", **told), size=SMALL_WORD_SIZE, color=INK)
    right = _x(num_ranks - 1, ranks_per_node)
    axes.set(xlim=(-0.7, right + 0.7), ylim=(-1.3, 2.3))
    return axes


def nodes_alt(
    sizes: Mapping[str, int], order: Sequence[str], axis: str, *, ranks_per_node: int
) -> str:
    """The row in words, for readers who do not see it."""
    groups = groups_of_axis(sizes, order, axis)
    crossing, hops = _counts(groups, axis, ranks_per_node)
    num_ranks = sum(map(len, groups))
    return word(
        "nodes.alt",
        ranks=num_ranks,
        nodes=-(-num_ranks // ranks_per_node),
        per_node=ranks_per_node,
        order=", ".join(order),
        axis=axis,
        groups=in_words(groups),
        crossing=crossing,
        hops=hops,
    )


def nodes_told(
    sizes: Mapping[str, int],
    order: Sequence[str],
    bytes_by_axis: Mapping[str, float],
    *,
    ranks_per_node: int,
) -> str:
    """The bytes between nodes by axis, in one line."""
    sent = slow_link_bytes(sizes, order, bytes_by_axis, ranks_per_node=ranks_per_node)
    parts = ", ".join(
        word("nodes.part", axis=axis, text=bytes_in_words(number)) for axis, number in sent.items()
    )
    return word("nodes.told", parts=parts, total=bytes_in_words(sum(sent.values())))


def order_explorer(
    sizes: Mapping[str, int], bytes_by_axis: Mapping[str, float], *, ranks_per_node: int
) -> ipywidgets.VBox:
    """Choose an order of the axes and an axis: see its groups on the nodes, and what crosses.

    Args:
        bytes_by_axis: what one rank sends along an axis; for pp, what crosses one boundary.
    """
    told = {"ranks_per_node": ranks_per_node}

    def pane(order: tuple[str, ...], axis: str) -> str:
        figure = new_figure(1.5)
        draw_nodes(figure.add_subplot(), sizes, order, axis, **told)
        label = nodes_told(sizes, order, bytes_by_axis, **told)
        return picture_html(address(svg(figure)), label, nodes_alt(sizes, order, axis, **told))

    orders = list(permutations(sizes))
    settings = [
        Setting(
            name=word("nodes.setting_order"),
            values=orders,
            options=[", ".join(order) for order in orders],
        ),
        Setting(
            name=word("nodes.setting_axis"),
            values=list(sizes),
            options=list(sizes),
            first=len(sizes) - 1,
        ),
    ]
    return choices(settings, pane)


def _drawn(axis: str, group: list[int]) -> list[tuple[int, int]]:
    """Each pair of ranks once, though they talk both ways."""
    return sorted({(min(hop), max(hop)) for hop in hops_of_group(axis, group)})


def _counts(groups: list[list[int]], axis: str, ranks_per_node: int) -> tuple[int, int]:
    hops = [hop for group in groups for hop in hops_of_group(axis, group)]
    return sum(a // ranks_per_node != b // ranks_per_node for a, b in hops), len(hops)


def _arc(axes: Axes, hop: tuple[int, int], ranks_per_node: int) -> None:
    far = hop[0] // ranks_per_node != hop[1] // ranks_per_node
    start, end = (_x(rank, ranks_per_node) for rank in hop)
    bend = min(0.6, 2.9 / (end - start))
    look: dict[str, Any] = {"arrowstyle": "-", "connectionstyle": f"arc3,rad=-{bend:.3f}"}
    arc = FancyArrowPatch((start, 0.3), (end, 0.3), **look)
    arc.set(color=COMMUNICATION if far else GREY, linewidth=1.8 if far else 1.2, zorder=2)
    axes.add_patch(arc)


def _x(rank: int, ranks_per_node: int) -> float:
    return rank + GAP * (rank // ranks_per_node)
