"""Seconds against payload, log-log: one curve an algorithm, a mark where the best one changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from labkit.viz.style import (
    INK,
    LINE_COLOURS,
    LINE_STYLES,
    PAPER,
    SMALL_WORD_SIZE,
    put_word,
    scaled_axes,
)
from labkit.viz.words import bytes_in_words, word


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Where two curves meet: `small` is faster below `payload_bytes`, `large` above."""

    small: str
    large: str
    payload_bytes: float
    seconds: float


def draw_cost_curves(
    axes: Axes,
    sizes_bytes: Sequence[float],
    seconds: Mapping[str, Sequence[float]],
    *,
    replayed: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    crossing: Crossing | None = None,
) -> Axes:
    """Cost curves of collectives.

    Args:
        axes: drawn on, returned.
        sizes_bytes: payload of one rank, growing.
        seconds: for each algorithm (a key of viz.words after "algorithm.") its time at each size.
        replayed: for some of them, (bytes, seconds) of replayed runs, drawn as rings on the curve.
        crossing: marked with its payload.
    """
    replayed = replayed or {}
    for (name, times), style, colour in zip(
        seconds.items(), LINE_STYLES, LINE_COLOURS, strict=False
    ):
        label = word(f"algorithm.{name}")
        axes.plot(sizes_bytes, times, linestyle=style, color=colour, linewidth=2, label=label)
        if name in replayed:
            sizes, times = zip(*replayed[name], strict=True)
            axes.plot(sizes, times, "o", color=colour, markersize=5)
    if crossing:
        place = crossing.payload_bytes, crossing.seconds
        axes.plot(*place, "o", markersize=11, color=INK, fillstyle="none", markeredgewidth=2)
        beside = (0.55 * place[0], 1.5 * place[1])
        put_word(axes, beside, bytes_in_words(place[0]), vertical="bottom")
    if replayed:
        label = word("curves.replayed")
        axes.plot([], [], "o", color=INK, markerfacecolor=PAPER, markersize=5, label=label)
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel(word("axis.payload_bytes"))
    axes.set_ylabel(word("axis.seconds"))
    axes.set_title(_finding(crossing))
    axes.legend(fontsize=SMALL_WORD_SIZE, frameon=False)
    return scaled_axes(axes)


def _finding(crossing: Crossing | None) -> str:
    if crossing is None:
        return word("curves.title")
    names = {
        "small": word(f"algorithm.{crossing.small}"),
        "large": word(f"algorithm.{crossing.large}"),
    }
    return word("curves.title_crossing", text=bytes_in_words(crossing.payload_bytes), **names)
