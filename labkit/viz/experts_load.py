"""Load of experts: bars for one routing, and the imbalance of whole runs.

A bar of the first has three parts, from below: copies whose expert is on the token's own rank (the
colour of arithmetic), copies that came over a link (that of communication), and copies beyond the
capacity, which are dropped (empty). A line marks the mean, and experts of one rank stand
together over the rank's number. It is spare SVG, as a page holds a frame for each choice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from labkit.cost.experts import imbalance
from labkit.viz.style import (
    COMMUNICATION,
    COMPUTE,
    IDLE,
    INK,
    LINE_COLOURS,
    LINE_STYLES,
    SMALL_WORD_SIZE,
    scaled_axes,
)
from labkit.viz.words import word

HEIGHT, FOOT = 300, 40  # of the bars and of the numbers below, in units of the picture
BAR, STEP, GAP = 100, 112, 40  # a bar, from a bar to the next, between two ranks


@dataclass(frozen=True, kw_only=True)
class Load:
    """Copies of one expert."""

    home: int
    away: int
    dropped: int

    @property
    def kept(self) -> int:
        return self.home + self.away

    @property
    def asked(self) -> int:
        return self.kept + self.dropped


def expert_loads(
    choices: Sequence[Sequence[int]], num_experts: int, ep: int, capacity: int | None = None
) -> list[Load]:
    """Loads of all experts; the first `capacity` copies for an expert are kept.

    Args:
        choices: for each token its experts; tokens lie on the ranks in ep equal parts, in order.
    """
    counts = [[0, 0, 0] for _ in range(num_experts)]
    tokens_per_rank, share = len(choices) // ep, num_experts // ep
    for token, chosen in enumerate(choices):
        for expert in chosen:
            home, away, _ = counts[expert]
            full = capacity is not None and home + away >= capacity
            is_away = expert // share != token // tokens_per_rank
            counts[expert][2 if full else int(is_away)] += 1
    return [Load(home=home, away=away, dropped=dropped) for home, away, dropped in counts]


def load_told(loads: Sequence[Load], ep: int, capacity: int | None) -> str:
    """The line under the bars."""
    share, asked = len(loads) // ep, sum(load.asked for load in loads)
    kept = [load.kept for load in loads]
    ranks = [sum(kept[i : i + share]) for i in range(0, len(kept), share)]
    said = {
        "expert": f"{float(imbalance(kept)):.2f}",
        "rank": f"{float(imbalance(ranks)):.2f}",
        "away": _percent(sum(load.away for load in loads), asked),
    }
    if capacity is None:
        return word("load.told_no_limit", **said)
    places = capacity * len(loads)
    dropped = _percent(sum(load.dropped for load in loads), asked)
    return word("load.told", dropped=dropped, empty=_percent(places - sum(kept), places), **said)


def load_svg(loads: Sequence[Load], ep: int, *, top: int) -> str:
    """Bars; `top` copies are as high as the picture, so that frames can be compared."""
    share, scale = len(loads) // ep, HEIGHT / top
    lefts = [STEP * n + GAP * (n // share) for n in range(len(loads))]
    width = lefts[-1] + BAR
    parts = []
    for left, load in zip(lefts, loads, strict=True):
        floor = float(HEIGHT)
        for value, colour in ((load.home, COMPUTE), (load.away, COMMUNICATION)):
            floor -= value * scale
            parts.append(_bar(left, floor, value * scale, f'fill="{colour}"'))
        edge = f'fill="{IDLE}" stroke="{INK}" stroke-dasharray="6"'
        parts.append(_bar(left, floor - load.dropped * scale, load.dropped * scale, edge))
    mean = HEIGHT - scale * sum(load.asked for load in loads) / len(loads)
    parts.append(f'<path stroke="{INK}" stroke-width="3" d="M0 {mean:.0f}H{width}"/>')
    for rank in range(ep):
        middle = (lefts[rank * share] + lefts[(rank + 1) * share - 1] + BAR) // 2
        place = f'x="{middle}" y="{HEIGHT + FOOT - 8}" font-size="34"'
        parts.append(f'<text {place} text-anchor="middle" fill="{INK}">{rank}</text>')
    size = f'viewBox="0 0 {width} {HEIGHT + FOOT}" width="{width}" height="{HEIGHT + FOOT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'


def draw_imbalance(
    axes: Axes, runs: Mapping[str, Sequence[float]], *, every: int, model: str
) -> Axes:
    """Imbalance by step.

    Args:
        runs: for each way (a key of viz.words after "load.") a value for each `every` steps.
        model: its name, for the title.
    """
    for (way, values), style, colour in zip(runs.items(), LINE_STYLES, LINE_COLOURS, strict=False):
        steps = [every * (n + 0.5) for n in range(len(values))]
        label = word(f"load.{way}")
        axes.plot(steps, values, linestyle=style, color=colour, linewidth=2, label=label)
    axes.axhline(1, color=INK, linewidth=0.8)
    axes.set_xlabel(word("axis.steps"))
    axes.set_ylabel(word("axis.imbalance"))
    axes.set_ylim(bottom=0.9)
    ends = {way: f"{values[-1]:.1f}" for way, values in runs.items()}
    axes.set_title(word("load.curves_title", model=model, **ends))
    below = (0.5, -0.18)
    axes.legend(
        fontsize=SMALL_WORD_SIZE, frameon=False, loc="upper center", bbox_to_anchor=below, ncols=2
    )
    return scaled_axes(axes)


def imbalance_alt(runs: Mapping[str, Sequence[float]]) -> str:
    """The curves in words."""
    told = (
        word(
            "load.curves_end",
            name=word(f"load.{way}"),
            first=f"{values[0]:.1f}",
            last=f"{values[-1]:.1f}",
        )
        for way, values in runs.items()
    )
    return word("load.curves_alt", ends="; ".join(told))


def _bar(left: int, top: float, height: float, look: str) -> str:
    if height <= 0:
        return ""
    return f'<rect x="{left}" y="{top:.0f}" width="{BAR}" height="{height:.0f}" {look}/>'


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
