"""Loss records of small models against tokens, the law fitted to them, and what it predicted.

One curve a size, from the law; marks are measured. The last curve is that of the model that the fit
never saw, with its prediction and its measured loss.
"""

from collections.abc import Sequence
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from labkit.cost.scaling_laws import Record, ScalingLaw
from labkit.viz.style import (
    COMMUNICATION,
    INK,
    LINE_COLOURS,
    LINE_STYLES,
    PAPER,
    SMALL_WORD_SIZE,
    scaled_axes,
)
from labkit.viz.words import word

STEPS = 40  # points of a curve


def draw_scaling(
    axes: Axes, records: Sequence[Record], law: ScalingLaw, target: Record, name: str
) -> Axes:
    """Records, law and prediction.

    Args:
        axes: drawn on, returned.
        records: (parameters, tokens, loss) that the law was fitted to.
        target: the same of the model that was predicted, its loss measured.
        name: of that model.
    """
    ends = min(tokens for _, tokens, _ in records), max(target[1], *(r[1] for r in records))
    tokens = [ends[0] * (ends[1] / ends[0]) ** (step / STEPS) for step in range(STEPS + 1)]
    looks = zip(cycle(LINE_COLOURS), cycle(LINE_STYLES), cycle("osD^v*"), strict=False)
    sizes = sorted({parameters for parameters, _, _ in records})
    for size, (colour, style, mark) in zip(sizes, looks, strict=False):
        curve = [law.loss(size, each) for each in tokens]
        axes.plot(tokens, curve, linestyle=style, color=colour, linewidth=1.2)
        own = [(d, loss) for n, d, loss in records if n == size]
        label = word("scaling.size", n=f"{size:,}")
        axes.plot(*zip(*own, strict=True), mark, color=colour, markersize=6, label=label)
    _draw_target(axes, law, target, name, tokens)
    axes.set(xscale="log")
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(word("axis.tokens"))
    axes.set_ylabel(word("axis.bits_per_byte"))
    axes.set_title(word("scaling.title", **_told(law, target, name)))
    place = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.18)}
    axes.legend(fontsize=SMALL_WORD_SIZE, frameon=False, ncols=2, **place)
    return scaled_axes(axes)


def scaling_alt(records: Sequence[Record], law: ScalingLaw, target: Record, name: str) -> str:
    """The picture in words, for readers who do not see it."""
    sizes = {parameters for parameters, _, _ in records}
    least, most = f"{min(sizes):,}", f"{max(sizes):,}"
    counts = {"records": len(records), "models": len(sizes), "least": least, "most": most}
    return word("scaling.alt", **counts, **_told(law, target, name))


def _draw_target(
    axes: Axes, law: ScalingLaw, target: Record, name: str, tokens: Sequence[float]
) -> None:
    size, seen, measured = target
    axes.plot(tokens, [law.loss(size, each) for each in tokens], color=COMMUNICATION, linewidth=2)
    predicted = law.loss(size, seen)
    label = word("scaling.predicted", name=name)
    axes.plot([seen], [predicted], "o", color=INK, markerfacecolor=PAPER, markersize=9, label=label)
    label = word("scaling.measured", name=name)
    axes.plot([seen], [measured], "X", color=COMMUNICATION, markeredgecolor=INK, markersize=9)
    axes.plot([], [], "X", color=COMMUNICATION, markeredgecolor=INK, markersize=9, label=label)


def _told(law: ScalingLaw, target: Record, name: str) -> dict[str, str]:
    size, tokens, measured = target
    predicted = law.loss(size, tokens)
    error = f"{100 * (predicted / measured - 1):+.1f}".replace("-", "−")
    numbers = {"predicted": f"{predicted:.2f}", "measured": f"{measured:.2f}", "error": error}
    return numbers | {"name": name}
