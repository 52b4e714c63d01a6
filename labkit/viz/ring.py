"""Ring all-reduce, step by step: who holds which sums, who sends which chunk to whom.

A rank is a grid: a column for each chunk, a row for each rank. Cell (row r, column c) is filled
when rank r's part is in this rank's sum of chunk c. At the start rank r has row r; at the end every
grid is full.

With N ranks, in step s = 0 … N−2 of the reduce-scatter rank r sends chunk r − s − 1 (mod N) to rank
r + 1, which adds it to its own; rank r then owns the sum of chunk r. In step s of the all-gather
rank r sends chunk r − s.
"""

import math
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.viz.style import (
    COMMUNICATION,
    COMPUTE,
    IDLE,
    INK,
    PAPER,
    SMALL_WORD_SIZE,
    WORD_SIZE,
    plain_axes,
    put_word,
)
from labkit.viz.words import word

CELL = 0.17  # side of a cell, where the ring's radius is 1
DONE = "#0b2238"  # a darker COMPUTE: this sum is complete


@dataclass(frozen=True, kw_only=True)
class RingStep:
    """The ring after one step.

    Args:
        title: words for this step.
        messages: (sender, receiver, chunk) of this step.
        held: held[rank][chunk] is the set of ranks whose parts are in that sum.
    """

    title: str
    messages: tuple[tuple[int, int, int], ...]
    held: tuple[tuple[frozenset[int], ...], ...]


def ring_all_reduce_steps(world_size: int) -> list[RingStep]:
    """The start and each of the 2(N−1) steps."""
    held = [[frozenset({rank})] * world_size for rank in range(world_size)]
    steps = [RingStep(title=word("ring.start"), messages=(), held=_frozen(held))]
    for phase, shift in (("ring.reduce_scatter", -1), ("ring.all_gather", 0)):
        for step in range(world_size - 1):
            messages = tuple(
                (rank, (rank + 1) % world_size, (rank - step + shift) % world_size)
                for rank in range(world_size)
            )
            sent = [held[sender][chunk] for sender, _, chunk in messages]
            for (_, receiver, chunk), part in zip(messages, sent, strict=True):
                held[receiver][chunk] = held[receiver][chunk] | part
            title = word(phase, step=step + 1, steps=world_size - 1)
            steps.append(RingStep(title=title, messages=messages, held=_frozen(held)))
    return steps


def _frozen(held: list[list[frozenset[int]]]) -> tuple[tuple[frozenset[int], ...], ...]:
    return tuple(tuple(chunks) for chunks in held)


def ring_step_alt(step: RingStep) -> str:
    """The step in words, for readers who do not see the picture."""
    ranks = len(step.held)
    if not step.messages:
        return word("ring.alt_start", ranks=ranks)
    keys = ("sender", "receiver", "chunk")
    sent = [
        word("ring.alt_message", **dict(zip(keys, message, strict=True)))
        for message in step.messages
    ]
    complete = []
    for rank, chunks in enumerate(step.held):
        done = [str(chunk) for chunk, parts in enumerate(chunks) if len(parts) == ranks]
        if done:
            complete.append(word("ring.alt_complete", rank=rank, chunks=", ".join(done)))
    complete = complete or [word("ring.alt_none")]
    texts = {"messages": "; ".join(sent), "complete": "; ".join(complete)}
    return word("ring.alt_step", ranks=ranks, title=step.title, **texts)


def ring_step_label(step: RingStep) -> str:
    """How far the ring has come: complete sums are equally many on all ranks."""
    ranks = len(step.held)
    done = sum(len(parts) == ranks for parts in step.held[0])
    return word("ring.label", done=done, ranks=ranks)


def draw_ring_step(axes: Axes, step: RingStep) -> Axes:
    """One grid a rank, clockwise from the top; arrows are the messages of this step."""
    plain_axes(axes)
    ranks = len(step.held)
    angles = [math.pi / 2 - 2 * math.pi * rank / ranks for rank in range(ranks)]
    centres = [(1.6 * math.cos(angle), 1.1 * math.sin(angle)) for angle in angles]
    arrived = {(receiver, chunk) for _, receiver, chunk in step.messages}
    for rank, chunks in enumerate(step.held):
        fresh = {chunk for chunk in range(ranks) if (rank, chunk) in arrived}
        _draw_grid(axes, centres[rank], rank, chunks, fresh)
    for sender, receiver, chunk in step.messages:
        _draw_message(axes, centres[sender], centres[receiver], chunk, CELL * ranks)
    _draw_legend(axes)
    axes.set(xlim=(-2.1, 2.1), ylim=(-2.25, 1.6))
    axes.set_title(step.title, size=WORD_SIZE, color=INK)
    return axes


def _draw_grid(
    axes: Axes,
    centre: tuple[float, float],
    rank: int,
    chunks: tuple[frozenset[int], ...],
    fresh: set[int],
) -> None:
    ranks = len(chunks)
    left, top = centre[0] - CELL * ranks / 2, centre[1] + CELL * ranks / 2
    for chunk, parts in enumerate(chunks):
        filled = DONE if len(parts) == ranks else COMPUTE
        for row in range(ranks):
            corner = (left + chunk * CELL, top - (row + 1) * CELL)
            colour = filled if row in parts else IDLE
            axes.add_patch(
                Rectangle(corner, CELL, CELL, facecolor=colour, edgecolor=PAPER, linewidth=1)
            )
        if chunk in fresh:
            column = Rectangle((left + chunk * CELL, top - ranks * CELL), CELL, CELL * ranks)
            column.set(facecolor="none", edgecolor=COMMUNICATION, linewidth=3, zorder=3)
            axes.add_patch(column)
        put_word(axes, (left + (chunk + 0.5) * CELL, top + 0.01), str(chunk), vertical="bottom")
    below = (centre[0], top - CELL * ranks - 0.03)
    put_word(axes, below, word("ring.rank", rank=rank), size=WORD_SIZE, vertical="top")


def _draw_message(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], chunk: int, size: float
) -> None:
    """An arrow that stops short of both grids, with the chunk's number on its outer side."""
    away = 0.78 * size / math.dist(start, end)
    arrow = {"arrowstyle": "-|>", "color": COMMUNICATION, "linewidth": 3, "mutation_scale": 18}
    axes.annotate("", _between(start, end, 1 - away), _between(start, end, away), arrowprops=arrow)
    middle = _between(start, end, 0.5)
    put_word(axes, (1.3 * middle[0], 1.3 * middle[1]), word("ring.chunk", chunk=chunk))


def _between(
    start: tuple[float, float], end: tuple[float, float], part: float
) -> tuple[float, float]:
    return start[0] + part * (end[0] - start[0]), start[1] + part * (end[1] - start[1])


def _draw_legend(axes: Axes) -> None:
    rows = (
        (COMPUTE, "ring.legend_held"),
        (DONE, "ring.legend_done"),
        (COMMUNICATION, "ring.legend_moved"),
    )
    marks = [Rectangle((0, 0), 1, 1, facecolor=colour) for colour, _ in rows]
    texts = [word(key) for _, key in rows]
    axes.legend(marks, texts, loc="lower center", fontsize=SMALL_WORD_SIZE, frameon=False)
