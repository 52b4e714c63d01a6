"""What a rank of ZeRO 3 holds over a step: bytes of weights, unit by unit, and the whole model."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from labkit.cost.held import HeldPoint
from labkit.viz.style import COMPUTE, INK, SMALL_WORD_SIZE, put_word, scaled_axes
from labkit.viz.words import bytes_in_words, word


def draw_held(
    axes: Axes,
    points: Sequence[HeldPoint],
    *,
    whole_bytes: int,
    measured_bytes: Sequence[int] | None = None,
) -> Axes:
    """Steps of held bytes over forward and backward, between the shards and the whole model.

    Args:
        axes: drawn on, returned.
        points: of a step, from start to end.
        whole_bytes: all weights, which a rank of plain data parallelism holds.
        measured_bytes: one number a point, drawn as dots.
    """
    places = range(len(points))
    held = [point.held_bytes / 1e6 for point in points]
    axes.bar(places, held, 1.0, color=COMPUTE, edgecolor=INK, linewidth=0.6)
    if measured_bytes is not None:
        dots = [each / 1e6 for each in measured_bytes]
        axes.plot(places, dots, "o", color=INK, markersize=4, label=word("held.measured"))
    lines = (("held.whole", whole_bytes, "--"), ("held.shard", points[0].held_bytes, ":"))
    for key, num_bytes, style in lines:
        label = word(key, text=bytes_in_words(num_bytes))
        axes.axhline(num_bytes / 1e6, color=INK, linestyle=style, linewidth=1.2, label=label)
    axes.set(ylim=(0, 1.35 * whole_bytes / 1e6), xticks=places)
    axes.set_xticklabels(["" if point.unit is None else str(point.unit) for point in points])
    for phase in ("forward", "backward"):
        own = [place for place, point in zip(places, points, strict=True) if point.phase == phase]
        middle = (own[0] + own[-1]) / 2
        put_word(axes, (middle, max(held) * 1.03), word(f"held.{phase}"), vertical="bottom")
    axes.set_xlabel(word("axis.events"))
    axes.set_ylabel(word("axis.held_megabytes"))
    ends = {"peak": _peak(points), "whole": bytes_in_words(whole_bytes)}
    axes.set_title(word("held.title", **ends))
    axes.legend(fontsize=SMALL_WORD_SIZE, frameon=False, loc="upper center", ncols=2)
    return scaled_axes(axes)


def held_alt(points: Sequence[HeldPoint], *, whole_bytes: int) -> str:
    """The picture in words, for readers who do not see it."""
    shard, whole = bytes_in_words(points[0].held_bytes), bytes_in_words(whole_bytes)
    return word("held.alt", shard=shard, peak=_peak(points), whole=whole)


def _peak(points: Sequence[HeldPoint]) -> str:
    return bytes_in_words(max(point.held_bytes for point in points))
