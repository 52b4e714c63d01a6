"""Two pictures of checkpoints and failures: goodput against the interval, and one run in time.

The curve is the closed form, rings are runs on the virtual clock, and filled marks the intervals of
Young's and of Daly's formula. In the run, what a failure made worthless is hatched.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.cost.failures import RESTART, SAVE, WAIT, WORK, WRITE, Run
from labkit.cost.goodput import (
    FailureCosts,
    daly_interval_s,
    expected_goodput,
    young_interval_s,
)
from labkit.viz.style import (
    COMMUNICATION,
    COMPUTE,
    IDLE,
    INK,
    LINE_COLOURS,
    PAPER,
    SMALL_WORD_SIZE,
    scaled_axes,
)
from labkit.viz.words import word

STEPS = 120  # points of the curve
COLOURS = {WORK: COMPUTE, SAVE: COMMUNICATION, WRITE: COMMUNICATION, RESTART: INK, WAIT: IDLE}
_SCALES = ((3600.0, "axis.run_hours"), (60.0, "axis.run_minutes"), (1.0, "axis.run_seconds"))


def draw_goodput(
    axes: Axes,
    costs: FailureCosts,
    *,
    ends_s: tuple[float, float],
    simulated: Sequence[tuple[float, float]] = (),
) -> Axes:
    """Goodput against the interval.

    Args:
        axes: drawn on, returned.
        costs: with a save that blocks for more than 0 s, and failures.
        ends_s: least and most interval.
        simulated: (interval, mean goodput) of runs on the virtual clock.
    """
    low, high = ends_s
    intervals = [low * (high / low) ** (step / STEPS) for step in range(STEPS + 1)]
    shares = [100 * expected_goodput(costs, each) for each in intervals]
    minutes = [each / 60 for each in intervals]
    axes.plot(minutes, shares, color=COMPUTE, linewidth=2, label=word("goodput.closed_form"))
    look: dict[str, Any] = {}
    if simulated:
        places = [s / 60 for s, _ in simulated], [100 * share for _, share in simulated]
        look = {"color": INK, "fillstyle": "none", "markersize": 7}
        axes.plot(*places, "o", label=word("goodput.simulated"), **look)
    marks = ("s", 11, LINE_COLOURS[1]), ("D", 7, COMMUNICATION)  # the smaller one on top
    for (name, interval), (mark, size, colour) in zip(_formulas(costs).items(), marks, strict=True):
        place = [interval / 60], [100 * expected_goodput(costs, interval)]
        look = {"color": colour, "markeredgecolor": INK, "markersize": size}
        label = word(f"goodput.{name}", n=_minutes(interval))
        axes.plot(*place, mark, label=label, **look)
    axes.set(xscale="log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel(word("axis.interval_minutes"))
    axes.set_ylabel(word("axis.goodput"))
    axes.set_title(word("goodput.title", **_told(costs)))
    axes.legend(fontsize=SMALL_WORD_SIZE, frameon=False, loc="lower center")
    return scaled_axes(axes)


def goodput_alt(costs: FailureCosts, ends_s: tuple[float, float]) -> str:
    """The picture in words, for readers who do not see it."""
    ends = dict(zip(("least", "most"), map(_minutes, ends_s), strict=True))
    shares = {
        f"{name}_share": f"{100 * expected_goodput(costs, each):.1f}"
        for name, each in zip(("least", "most"), ends_s, strict=True)
    }
    return word("goodput.alt", **ends, **shares, **_told(costs))


def draw_run(axes: Axes, run: Run) -> Axes:
    """One run from left to right: what it did, above it what it wrote behind work, its failures."""
    scale, unit = next((s for s in _SCALES if run.wall_s >= 2 * s[0]), _SCALES[-1])
    for event in run.events:
        row = (0.62, 0.2) if event.kind == WRITE else (0.0, 0.6)
        colour = COLOURS[event.kind]
        look: dict[str, Any] = {"facecolor": colour, "linewidth": 0}
        if not event.kept:
            look |= {"facecolor": PAPER, "edgecolor": colour, "hatch": "////", "linewidth": 0.8}
        length = event.end_s - event.start_s
        axes.broken_barh([(event.start_s / scale, length / scale)], row, **look)
    failures = [each / scale for each in run.failures_s]
    axes.plot(failures, [0.95] * len(failures), "v", color=INK, markersize=8)
    axes.set(xlim=(0, run.wall_s / scale), ylim=(0, 1.1), yticks=[])
    axes.set_xlabel(word(unit))
    axes.set_title(word("goodput.run_title", **_told_of(run)))
    _legend(axes, run)
    axes.spines["left"].set_visible(False)
    return scaled_axes(axes)


def run_alt(run: Run) -> str:
    """The picture in words."""
    kinds = {
        "kept": run.seconds(WORK, kept=True),
        "again": run.seconds(WORK, kept=False),
        "saved": run.seconds(SAVE, kept=True) + run.seconds(SAVE, kept=False),
        "restarted": run.seconds(RESTART, kept=True) + run.seconds(RESTART, kept=False),
    }
    parts = {name: f"{100 * seconds / run.wall_s:.0f}" for name, seconds in kinds.items()}
    return word("goodput.run_alt", **parts, **_told_of(run))


def _legend(axes: Axes, run: Run) -> None:
    """What is drawn, and no more."""
    kinds = [kind for kind in COLOURS if any(event.kind == kind for event in run.events)]
    kinds = [kind for kind in kinds if kind != WRITE or SAVE not in kinds]
    handles: list[Any] = [
        Patch(facecolor=COLOURS[kind], label=word(f"goodput.{kind}")) for kind in kinds
    ]
    if not all(event.kept for event in run.events):
        look: dict[str, Any] = {"facecolor": PAPER, "edgecolor": COMPUTE, "hatch": "////"}
        handles.append(Patch(label=word("goodput.lost"), **look))
    if run.failures_s:
        label = word("goodput.failure")
        handles += axes.plot([], [], "v", color=INK, markersize=8, label=label)
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.35), "ncols": 3}
    axes.legend(handles=handles, fontsize=SMALL_WORD_SIZE, frameon=False, **place)


def _formulas(costs: FailureCosts) -> dict[str, float]:
    known = costs.blocking_s, costs.between_failures_s
    return {"young": young_interval_s(*known), "daly": daly_interval_s(*known)}


def _told(costs: FailureCosts) -> dict[str, str]:
    best = _formulas(costs)["daly"]
    share = f"{100 * expected_goodput(costs, best):.1f}"
    return {
        "share": share,
        "best": _minutes(best),
        "failures": _minutes(costs.between_failures_s),
    }


def _told_of(run: Run) -> dict[str, str]:
    return {"share": f"{100 * run.goodput:.0f}", "n": f"{len(run.failures_s)}"}


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.3g}"
