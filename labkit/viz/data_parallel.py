"""Data parallelism in one picture: forward above, backward below, one row a rank.

Forward: the batch x is split by rows, every rank has all of the weights w, the outputs y are
joined. Backward: every rank has a gradient of all weights, and all get the mean.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.viz.style import (
    COMMUNICATION,
    COMPUTE,
    IDLE,
    INK,
    PAPER,
    WORD_SIZE,
    plain_axes,
    put_word,
)
from labkit.viz.words import word

ROW = 0.62  # height of what one rank holds, where rows are 1 apart
PARTS = (0.0, 2.6, 5.2, 7.8)  # where the columns of boxes begin
WIDE = 1.2


def draw_forward(axes: Axes, world_size: int) -> Axes:
    """The batch in bands, each through its own copy of the weights, and the outputs joined."""
    _start(axes, world_size, "data_parallel.forward")
    _stack(axes, PARTS[0], world_size, IDLE)
    _stack(axes, PARTS[3], world_size, IDLE)
    for rank in range(world_size):
        y = -float(rank)
        put_word(
            axes, (PARTS[0] + WIDE / 2, _band(rank, world_size)), word("data_parallel.x", rank=rank)
        )
        put_word(
            axes, (PARTS[3] + WIDE / 2, _band(rank, world_size)), word("data_parallel.y", rank=rank)
        )
        _box(axes, (PARTS[1], y), COMPUTE, word("data_parallel.weights"), PAPER)
        _box(axes, (PARTS[2], y), IDLE, word("data_parallel.y", rank=rank), INK)
        _arrow(axes, (PARTS[0] + WIDE, _band(rank, world_size)), (PARTS[1], y), INK)
        _arrow(axes, (PARTS[1] + WIDE, y), (PARTS[2], y), INK)
        _arrow(axes, (PARTS[2] + WIDE, y), (PARTS[3], _band(rank, world_size)), INK)
    _heads(axes, world_size, ("batch", "copies", "outputs", "joined"))
    return axes


def draw_backward(axes: Axes, world_size: int) -> Axes:
    """A gradient of all weights on each rank, the mean on all of them, and one equal update."""
    _start(axes, world_size, "data_parallel.backward")
    middle = -(world_size - 1) / 2
    for rank in range(world_size):
        y = -float(rank)
        _box(axes, (PARTS[0], y), COMMUNICATION, word("data_parallel.g", rank=rank), INK)
        _box(axes, (PARTS[2], y), COMMUNICATION, word("data_parallel.mean"), INK)
        _box(axes, (PARTS[3], y), COMPUTE, word("data_parallel.updated"), PAPER)
        _arrow(axes, (PARTS[0] + WIDE, y), (PARTS[1], middle), COMMUNICATION)
        _arrow(axes, (PARTS[1] + WIDE, middle), (PARTS[2], y), COMMUNICATION)
        _arrow(axes, (PARTS[2] + WIDE, y), (PARTS[3], y), INK)
    _box(axes, (PARTS[1], middle), PAPER, word("data_parallel.sum"), INK)
    _heads(axes, world_size, ("gradients", "aggregated", "means", "update"))
    return axes


def _start(axes: Axes, world_size: int, title: str) -> None:
    plain_axes(axes)
    axes.set(xlim=(-0.2, PARTS[3] + WIDE + 0.2), ylim=(-world_size + 0.4, 1.1))
    axes.set_title(word(title), size=WORD_SIZE, color=INK)


def _band(rank: int, world_size: int) -> float:
    """The height at which a rank's band lies in a stack whose bands touch."""
    middle = -(world_size - 1) / 2
    return middle + (middle + rank) * -ROW


def _stack(axes: Axes, left: float, world_size: int, colour: str) -> None:
    for rank in range(world_size):
        corner = (left, _band(rank, world_size) - ROW / 2)
        axes.add_patch(Rectangle(corner, WIDE, ROW, facecolor=colour, edgecolor=INK, linewidth=1))


def _box(axes: Axes, place: tuple[float, float], colour: str, text: str, ink: str) -> None:
    """A box whose left edge has its middle at the place."""
    corner = (place[0], place[1] - ROW / 2)
    box = Rectangle(corner, WIDE, ROW, facecolor=colour, edgecolor=INK, linewidth=1, zorder=2)
    axes.add_patch(box)
    put_word(axes, (place[0] + WIDE / 2, place[1]), text, colour=ink)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.3, "shrinkA": 1, "shrinkB": 1}
    axes.annotate("", xy=end, xytext=start, arrowprops=style, zorder=1)


def _heads(axes: Axes, world_size: int, names: Sequence[str]) -> None:
    for left, name in zip(PARTS, names, strict=True):
        put_word(axes, (left + WIDE / 2, 0.75), word(f"data_parallel.{name}"))
