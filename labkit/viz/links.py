"""Bytes on each link: a star around rank 0 (a parameter server) or a ring.

A link is drawn as one arrow a direction; its width grows with the bytes, which stand beside it.
"""

import math
from collections.abc import Mapping

from matplotlib.axes import Axes

from labkit.viz.style import (
    COMMUNICATION,
    COMPUTE,
    INK,
    PAPER,
    WORD_SIZE,
    plain_axes,
    put_word,
)
from labkit.viz.words import bytes_in_words, word

Place = tuple[float, float]
MOST = 6.0  # points: width of the arrow that carries the most


def draw_link_bytes(
    axes: Axes, name: str, num_bytes: Mapping[tuple[int, int], int], *, most: int
) -> Axes:
    """Arrows between ranks, each with the bytes that it carried.

    Args:
        axes: drawn on, returned.
        name: "server" (rank 0 in the middle) or "ring", a key of viz.words after "links.".
        num_bytes: bytes sent, by (source, target).
        most: bytes of the widest arrow, for drawings on one scale.
    """
    plain_axes(axes)
    ranks = sorted({rank for pair in num_bytes for rank in pair})
    places = _star(len(ranks)) if name == "server" else _circle(len(ranks))
    for (source, target), count in num_bytes.items():
        _draw_link(axes, places[source], places[target], count, MOST * count / most)
    for rank in ranks:
        axes.plot(*places[rank], marker="o", markersize=24, color=COMPUTE, zorder=3)
        put_word(axes, places[rank], str(rank), colour=PAPER)
    axes.set(xlim=(-1.7, 1.7), ylim=(-1.4, 1.4))
    busiest = max(_through(num_bytes, rank) for rank in ranks)
    text = word("links.title", name=word(f"links.{name}"), text=bytes_in_words(busiest))
    axes.set_title(text, size=WORD_SIZE, color=INK)
    return axes


def _through(num_bytes: Mapping[tuple[int, int], int], rank: int) -> int:
    return sum(count for pair, count in num_bytes.items() if rank in pair)


def _star(num_ranks: int) -> list[Place]:
    """Rank 0 in the middle, the others around it."""
    return [(0.0, 0.0), *_circle(num_ranks - 1)]


def _circle(num_ranks: int) -> list[Place]:
    angles = [math.pi / 2 - 2 * math.pi * rank / num_ranks for rank in range(num_ranks)]
    return [(1.1 * math.cos(angle), 1.1 * math.sin(angle)) for angle in angles]


def _draw_link(axes: Axes, start: Place, end: Place, count: int, width: float) -> None:
    """An arrow beside the middle line, to the left of its direction, so that two never cover."""
    (x0, y0), (x1, y1) = start, end
    length = math.hypot(x1 - x0, y1 - y0)
    along = ((x1 - x0) / length, (y1 - y0) / length)
    side = (-0.09 * along[1], 0.09 * along[0])
    gap = 0.2
    tail = (x0 + gap * along[0] + side[0], y0 + gap * along[1] + side[1])
    head = (x1 - gap * along[0] + side[0], y1 - gap * along[1] + side[1])
    style = {"arrowstyle": "-|>", "color": COMMUNICATION, "linewidth": width}
    axes.annotate("", xy=head, xytext=tail, arrowprops={**style, "shrinkA": 0, "shrinkB": 0})
    away = (4.6 * side[0], 2.8 * side[1])
    middle = ((x0 + x1) / 2 + away[0], (y0 + y1) / 2 + away[1])
    put_word(axes, middle, bytes_in_words(count))
