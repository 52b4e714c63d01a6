"""A replayed step: one row a rank, what it computes and what it sends, in virtual time.

Where a step has arithmetic and messages, a row has two lanes: compute above, communication below,
so that an overlap shows as two bars above each other. The ground of a row is idle time.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.measure.timeline import COMMUNICATION as COMMUNICATION_LANE
from labkit.measure.timeline import COMPUTE as COMPUTE_LANE
from labkit.measure.timeline import Timeline
from labkit.viz.style import (
    COMMUNICATION,
    COMPUTE,
    IDLE,
    PAPER,
    SMALL_WORD_SIZE,
    scaled_axes,
)
from labkit.viz.words import seconds_in_words, word

COLOURS = {COMPUTE_LANE: COMPUTE, COMMUNICATION_LANE: COMMUNICATION}
ROW = 0.8  # height of a row, where rows are 1 apart
_SCALES = ((1.0, "axis.seconds"), (1e3, "axis.milliseconds"), (1e6, "axis.microseconds"))


def draw_timeline(axes: Axes, timeline: Timeline, name: str, *, end_s: float | None = None) -> Axes:
    """Bars of all ranks, rank 0 on top.

    Args:
        axes: drawn on, returned.
        timeline: what `labkit.measure.fabric.replay` gave back.
        name: of what ran, a key of viz.words after "algorithm.".
        end_s: right end of the axis, for timelines on one scale; the step's own end if None.
    """
    end_s = timeline.step_s if end_s is None else end_s
    scale, unit = next((s for s in _SCALES if end_s * s[0] >= 1), _SCALES[-1])
    lanes = sorted({span.lane for span in timeline.spans}, reverse=True)  # compute above
    ranks = len(timeline.ranks)
    for rank in range(ranks):
        axes.broken_barh([(0, timeline.step_s * scale)], (rank - ROW / 2, ROW), facecolor=IDLE)
        for index, lane in enumerate(lanes):
            height = ROW / len(lanes)
            bars = [
                (span.start_s * scale, (span.end_s - span.start_s) * scale)
                for span in timeline.spans
                if span.rank == rank and span.lane == lane
            ]
            place = (rank - ROW / 2 + index * height, height)
            axes.broken_barh(bars, place, facecolor=COLOURS[lane], edgecolor=PAPER, linewidth=0.8)
    axes.set(xlim=(0, end_s * scale), ylim=(ranks - 0.4, -0.6))
    axes.set_yticks(range(ranks), [word("timeline.rank", rank=rank) for rank in range(ranks)])
    axes.set_xlabel(word(unit))
    axes.set_title(_title(timeline, name))
    return scaled_axes(axes)


def _title(timeline: Timeline, name: str) -> str:
    text = seconds_in_words(timeline.step_s)
    return word("timeline.title", name=word(f"algorithm.{name}"), text=text)


def timeline_legend(axes: Axes, lanes: Sequence[str]) -> None:
    """What the colours mean, for the lanes that are drawn and for idle time, below the axes."""
    marks = [Patch(facecolor=COLOURS[lane], label=word(f"kind.{lane}")) for lane in lanes]
    marks.append(Patch(facecolor=IDLE, label=word("kind.idle")))
    place = {"loc": "upper right", "bbox_to_anchor": (1.0, -0.25), "ncols": len(marks)}
    axes.legend(handles=marks, fontsize=SMALL_WORD_SIZE, frameon=False, **place)
