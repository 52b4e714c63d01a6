"""Efficiency against ranks: the share of a step in which a rank computes what one rank would."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

from labkit.viz.style import (
    INK,
    LINE_COLOURS,
    LINE_STYLES,
    SMALL_WORD_SIZE,
    scaled_axes,
)
from labkit.viz.words import bytes_in_words, word

BOUND = 0.8  # the knee: where a curve falls below


def draw_efficiency(
    axes: Axes,
    ranks: Sequence[int],
    curves: Mapping[str, Sequence[float]],
) -> Axes:
    """Curves of efficiency, the bound of 80 %, and how far each curve stays above it.

    Args:
        axes: drawn on, returned.
        ranks: numbers of ranks, growing.
        curves: for each way to communicate (a key of viz.words after "efficiency.") its efficiency
            at each number of ranks.
    """
    for (name, values), style, colour in zip(
        curves.items(), LINE_STYLES, LINE_COLOURS, strict=False
    ):
        label = word("efficiency.label", name=word(f"efficiency.{name}"), n=_told(ranks, values))
        axes.plot(ranks, values, linestyle=style, color=colour, linewidth=2, label=label)
    axes.axhline(BOUND, color=INK, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set(ylim=(0, 1.04), xlim=(ranks[0], ranks[-1]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_xlabel(word("axis.ranks"))
    axes.set_ylabel(word("axis.efficiency"))
    axes.set_title(word("efficiency.title"))
    place = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.2)}  # below: curves may be low
    axes.legend(fontsize=SMALL_WORD_SIZE, frameon=False, **place)
    return scaled_axes(axes)


def last_above(ranks: Sequence[int], values: Sequence[float], bound: float = BOUND) -> int | None:
    """The last number of ranks before a curve first falls below the bound; None if it never does.

    `ranks` begins at 1, where nothing is sent and every curve is above.
    """
    for before, value in zip((ranks[0], *ranks), values, strict=False):
        if value < bound:
            return before
    return None


def efficiency_label(*, model: str, tokens: int, bytes_per_s: float) -> str:
    """The setting of a frame, in one line."""
    link = bytes_in_words(bytes_per_s)
    return word("efficiency.setting", model=model, tokens=f"{tokens:,}", link=link)


def efficiency_alt(
    ranks: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    *,
    model: str,
    tokens: int,
    bytes_per_s: float,
) -> str:
    """The frame in words, for readers who do not see the picture."""
    return _alt(
        ranks, curves, efficiency_label(model=model, tokens=tokens, bytes_per_s=bytes_per_s)
    )


def tensor_efficiency_label(*, model: str, tokens: int, fast: float, slow: float) -> str:
    """The setting of a frame about tensor parallelism: all ranks work on the same tokens.

    Args:
        model: its name.
        tokens: in the batch.
        fast, slow: bytes a second of the two kinds of links.
    """
    links = {"fast": bytes_in_words(fast), "slow": bytes_in_words(slow)}
    return word("efficiency.tensor_setting", model=model, tokens=f"{tokens:,}", **links)


def tensor_efficiency_alt(
    ranks: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    *,
    model: str,
    tokens: int,
    fast: float,
    slow: float,
) -> str:
    """The same frame in words."""
    setting = tensor_efficiency_label(model=model, tokens=tokens, fast=fast, slow=slow)
    return _alt(ranks, curves, setting)


def _alt(ranks: Sequence[int], curves: Mapping[str, Sequence[float]], setting: str) -> str:
    told = "; ".join(
        word("efficiency.label", name=word(f"efficiency.{name}"), n=_told(ranks, values))
        for name, values in curves.items()
    )
    ends = {"first": ranks[0], "last": ranks[-1]}
    return word("efficiency.alt", setting=setting, curves=told, **ends)


def _told(ranks: Sequence[int], values: Sequence[float]) -> str:
    last = last_above(ranks, values)
    if last is None:
        return word("efficiency.all", ranks=ranks[-1])
    return word("efficiency.up_to", ranks=last) if last > 1 else word("efficiency.never")
