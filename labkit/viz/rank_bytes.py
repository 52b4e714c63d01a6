"""Bytes through each rank, one group of bars a rank and one bar an algorithm."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes

from labkit.viz.style import COMMUNICATION, INK, PAPER, SMALL_WORD_SIZE, put_word, scaled_axes
from labkit.viz.words import bytes_in_words, word

# Both are communication: they are told apart by a hatch, not by another colour.
_FILLS = ((PAPER, "///"), (COMMUNICATION, ""))


def draw_rank_bytes(axes: Axes, num_bytes: Mapping[str, Sequence[float]]) -> Axes:
    """Bars of the bytes that each rank sends and receives.

    Args:
        axes: drawn on, returned.
        num_bytes: for each of at most two algorithms (keys of viz.words after "algorithm.") the
            bytes by rank.
    """
    width = 0.8 / len(num_bytes)
    for index, (name, by_rank) in enumerate(num_bytes.items()):
        colour, hatch = _FILLS[index]
        places = [rank - 0.4 + (index + 0.5) * width for rank in range(len(by_rank))]
        heights = [count / 1e6 for count in by_rank]
        bars = axes.bar(places, heights, width * 0.92, label=word(f"algorithm.{name}"))
        for bar in bars:
            bar.set(facecolor=colour, hatch=hatch, edgecolor=INK, linewidth=0.8)
        for place, height in zip(places, heights, strict=True):
            put_word(axes, (place, height), f"{height:.3g}", vertical="bottom")
    axes.set_xticks(range(len(next(iter(num_bytes.values())))))
    axes.set_xlabel(word("axis.rank"))
    axes.set_ylabel(word("axis.rank_megabytes"))
    axes.set_title(_finding(num_bytes))
    axes.legend(fontsize=SMALL_WORD_SIZE, frameon=False)
    return scaled_axes(axes)


def _finding(num_bytes: Mapping[str, Sequence[float]]) -> str:
    """Names the gain where the totals are equal, as they are for the two ways to all-reduce."""
    totals = {sum(by_rank) for by_rank in num_bytes.values()}
    busiest = [max(by_rank) for by_rank in num_bytes.values()]
    if len(totals) == 1 and min(busiest) < max(busiest):
        texts = [bytes_in_words(count) for count in (max(busiest), min(busiest))]
        return word("bytes.title", most=texts[0], least=texts[1])
    return word("bytes.title_plain")
