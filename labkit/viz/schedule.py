"""A pipeline schedule as a timeline: a row a rank, a bar an action, micro-batch numbers inside.

| bar      | means                                               | luminance |
| -------- | --------------------------------------------------- | --------- |
| FORWARD  | F, the forward of one micro-batch on one stage      | 0.74      |
| BACKWARD | B, the whole backward, or I, its half for the input | 0.31      |
| WEIGHT   | W, the half of the backward for the weights         | 0.50      |

All three are arithmetic; what is left of a row is idle. A thin bar under a row is a message of that
rank under way. A stripe inside a bar marks the rank's second chunk.

The same bars come from a simulated schedule, whose spans have an action, and from the replayed log
of a real run that was marked with the names of its actions, such as "F3" or "I0.1".
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from labkit.measure.timeline import COMMUNICATION as COMMUNICATION_LANE
from labkit.measure.timeline import COMPUTE as COMPUTE_LANE
from labkit.measure.timeline import Timeline
from labkit.viz.style import (
    COMMUNICATION,
    COMPUTE,
    IDLE,
    INK,
    PAPER,
    SMALL_WORD_SIZE,
    put_word,
    scaled_axes,
)
from labkit.viz.words import word

FORWARD = "#9cc7ec"
BACKWARD = COMPUTE
WEIGHT = "#6f8f3f"
COLOURS = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT}
INKS = {"F": INK, "B": PAPER, "I": PAPER, "W": PAPER}
ROW = 0.84  # height of a row, where rows are 1 apart
LANE = 0.16  # of it, for messages, where there are any
STRIPE = 0.09
LEAST_FOR_A_NUMBER = 1 / 48  # of the axis: a narrower bar has no room for its micro-batch
_ACTION = re.compile(r"([FBIW])(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One action of one rank, in seconds or in units of a forward."""

    rank: int
    kind: str  # F, B, I or W
    micro_batch: int
    chunk: int
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Message:
    """The time in which one message leaves or reaches a rank."""

    rank: int
    start: float
    end: float


class TimedAction(Protocol):
    """What a simulator gives back for one action, whose text is its name: "F3", "I0.1"."""

    @property
    def action(self) -> object: ...
    @property
    def start_s(self) -> float: ...
    @property
    def end_s(self) -> float: ...


def bar(rank: int, action: str, start: float, end: float) -> Bar:
    """A bar from the name of its action.

    Raises:
        ValueError: if that is no name of an action.
    """
    named = _ACTION.fullmatch(action)
    if named is None:
        raise ValueError(f'"{action}" names no action; F3 or I0.1 would')
    kind, micro_batch, chunk = named.groups(default="0")
    numbers = {"micro_batch": int(micro_batch), "chunk": int(chunk)}
    return Bar(rank=rank, kind=kind, start=start, end=end, **numbers)


def simulated_bars(ranks: Sequence[Sequence[TimedAction]]) -> list[Bar]:
    """The actions of a simulated schedule, given for each rank."""
    return [
        bar(rank, str(span.action), span.start_s, span.end_s)
        for rank, spans in enumerate(ranks)
        for span in spans
    ]


def simulated_messages(
    ranks: Sequence[Sequence[TimedAction]],
    receiver: Callable[[int, Any], int | None],
    message_s: float,
) -> list[Message]:
    """The messages of a simulated schedule, on both ranks, for that long behind their action.

    Args:
        ranks: the actions of each rank.
        receiver: the other rank that takes the result of a rank's action, or None.
        message_s: how long a message is under way.
    """
    found = []
    for rank, spans in enumerate(ranks):
        for span in spans:
            other = receiver(rank, span.action)
            if other is not None:
                times = {"start": span.end_s, "end": span.end_s + message_s}
                found += [Message(rank=each, **times) for each in (rank, other)]
    return found


def replayed_bars(timeline: Timeline) -> list[Bar]:
    """The actions of a real run, from the marks of its log: first to last arithmetic of each."""
    ends: dict[tuple[int, str], tuple[float, float]] = {}
    for span in timeline.spans:
        if span.lane == COMPUTE_LANE and _ACTION.fullmatch(span.label):
            start, _ = ends.get((span.rank, span.label), (span.start_s, 0.0))
            ends[span.rank, span.label] = (start, span.end_s)
    return [bar(rank, action, *times) for (rank, action), times in ends.items()]


def replayed_messages(timeline: Timeline) -> list[Message]:
    """The communication of a replayed run."""
    return [
        Message(rank=span.rank, start=span.start_s, end=span.end_s)
        for span in timeline.spans
        if span.lane == COMMUNICATION_LANE
    ]


def draw_schedule(
    axes: Axes,
    bars: Sequence[Bar],
    title: str,
    *,
    num_ranks: int,
    messages: Sequence[Message] = (),
    end: float | None = None,
    unit: str = "axis.forwards",
) -> Axes:
    """Rows of all ranks, rank 0 on top.

    Args:
        axes: drawn on, returned.
        bars: actions of all ranks.
        title: the finding, in words.
        messages: of all ranks; with any, each row keeps a thin lane for them.
        end: right end of the axis, for timelines on one scale; the last bar's end if None.
        unit: of times, a key of viz.words.
    """
    step = max(*(each.end for each in bars), *(each.end for each in messages), 0.0)
    end = step if end is None else end
    height = ROW - LANE if messages else ROW
    for rank in range(num_ranks):
        axes.broken_barh([(0, step)], (rank - ROW / 2, ROW), facecolor=IDLE)
        mine = [(each.start, each.end - each.start) for each in messages if each.rank == rank]
        axes.broken_barh(mine, (rank + ROW / 2 - LANE, LANE), facecolor=COMMUNICATION)
    _draw_bars(axes, bars, height, least=end * LEAST_FOR_A_NUMBER)
    axes.set(xlim=(0, end), ylim=(num_ranks - 0.4, -0.6))
    axes.set_yticks(
        range(num_ranks), [word("timeline.rank", rank=rank) for rank in range(num_ranks)]
    )
    axes.set_xlabel(word(unit))
    axes.set_title(title)
    return scaled_axes(axes)


def _draw_bars(axes: Axes, bars: Iterable[Bar], height: float, *, least: float) -> None:
    for each in bars:
        low, long = each.rank - ROW / 2, each.end - each.start
        look = {"facecolor": COLOURS[each.kind], "edgecolor": PAPER, "linewidth": 0.6}
        axes.broken_barh([(each.start, long)], (low, height), **look)
        if each.chunk % 2:
            place = (low + height - 2 * STRIPE, STRIPE)
            axes.broken_barh([(each.start, long)], place, facecolor=INKS[each.kind])
        if long >= least:
            middle = (each.start + long / 2, low + height / 2 - (STRIPE if each.chunk % 2 else 0))
            put_word(axes, middle, str(each.micro_batch), size=7.5, colour=INKS[each.kind])


def schedule_legend(
    axes: Axes, kinds: Sequence[str], *, below: float = -0.3, columns: int = 4
) -> None:
    """What the colours mean: the kinds given ("BI" for B or I, "message"), and idle time."""
    colours = {**COLOURS, "BI": BACKWARD, "message": COMMUNICATION, "idle": IDLE}
    marks = [
        Patch(facecolor=colours[kind], label=word(f"schedule.{kind}")) for kind in (*kinds, "idle")
    ]
    place = {"loc": "upper right", "bbox_to_anchor": (1.0, below), "ncols": columns}
    axes.legend(handles=marks, fontsize=SMALL_WORD_SIZE, frameon=False, **place)
