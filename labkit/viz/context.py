"""Who works on what when a sequence is shared: the causal triangle, coloured by rank.

A square is a chunk of tokens that asks (its row) and one that is asked (its column); what the mask
hides is white. The colour is the rank that holds the row. A square on the diagonal is computed
whole. Shares are labkit.cost.context's count of chunk pairs.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.cost.context import chunk_pairs
from labkit.viz.splits import RANK_COLOURS
from labkit.viz.style import INK, PAPER, SMALL_WORD_SIZE, put_word, scaled_axes
from labkit.viz.words import word


def holders(cp: int, layout: str) -> list[int]:
    """The rank of each chunk of a sequence: 2 cp of them in zigzag, cp if contiguous."""
    if layout == "zigzag":
        return [min(chunk, 2 * cp - 1 - chunk) for chunk in range(2 * cp)]
    return list(range(cp))


def draw_context(axes: Axes, cp: int, layout: str) -> Axes:
    """The triangle of one layout, in squares of chunks.

    Args:
        axes: drawn on, returned.
        cp: ranks, at most four.
        layout: "contiguous" or "zigzag".
    """
    ranks = holders(cp, layout)
    count = len(ranks)
    for row, rank in enumerate(ranks):
        for column in range(row + 1):
            look: dict[str, Any] = {"facecolor": RANK_COLOURS[rank], "edgecolor": INK}
            axes.add_patch(Rectangle((column, count - 1 - row), 1, 1, linewidth=0.5, **look))
        corner = [(row, count - row), (row + 1, count - row), (row + 1, count - 1 - row)]
        axes.fill(*zip(*corner, strict=True), facecolor=PAPER, edgecolor=INK, linewidth=0.5)
        put_word(axes, (-0.05 * count, count - row - 0.52), str(rank), size=9)
    pairs = chunk_pairs(cp, layout)
    busiest = max(range(cp), key=pairs.__getitem__)
    title = {"layout": word(f"context.{layout}"), "rank": busiest, "share": _shares(pairs)[busiest]}
    axes.set(xlim=(-0.1 * count, count), ylim=(0, count), xticks=[], yticks=[], aspect="equal")
    axes.set_xlabel(word("axis.key_token"))
    axes.set_ylabel(word("axis.query_token"))
    axes.set_title(word("context.title", **title))
    scaled_axes(axes)
    axes.title.set(size=SMALL_WORD_SIZE)
    return axes


def context_alt(cp: int, layouts: Sequence[str]) -> str:
    """The triangles in words, for readers who do not see them."""
    told = ". ".join(
        word(
            "context.alt_layout",
            layout=word(f"context.{layout}"),
            last=cp - 1,
            shares=", ".join(_shares(chunk_pairs(cp, layout))),
        )
        for layout in layouts
    )
    return word("context.alt", told=told)


def _shares(pairs: Sequence[int]) -> list[str]:
    return [f"{100 * each / sum(pairs):.0f} %" for each in pairs]
