"""Choose a split of X·W: which part each rank holds, what it makes, which collective joins it.

A matrix is a rectangle cut into shards. A shard carries the numbers of the ranks that hold it, or
"all"; it has a rank's colour if it is that rank's alone. An orange, hatched shard is not done: each
rank has a part of every sum in it.

| choice    | a rank holds of W | makes                        | joined by                    |
| --------- | ----------------- | ---------------------------- | ---------------------------- |
| columns   | some columns      | the same columns of Y        | all-gather, if at all        |
| rows      | some rows         | parts of all sums of Y       | all-reduce                   |
| blocks    | one block of 2×2  | parts of half of the columns | all-reduce, then all-gather  |
| mlp       | columns, rows     | hidden units; parts of Y     | one all-reduce               |
| attention | heads, rows       | heads; parts of Y            | one all-reduce               |
| embedding_columns | columns of the table | the same columns of Y | all-gather            |
| embedding_words   | rows, its words      | Y, with zeros for other words | all-reduce    |
"""

from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.viz.style import (
    COMMUNICATION,
    IDLE,
    INK,
    PAPER,
    SMALL_WORD_SIZE,
    WORD_SIZE,
    plain_axes,
    put_word,
)
from labkit.viz.words import word

RANK_COLOURS = ("#8fb3d9", "#cfe0f1", "#7aa37a", "#cbe0c4")
CHOICES = (
    *("columns", "rows", "blocks", "mlp", "attention"),
    *("embedding_columns", "embedding_words"),
)


@dataclass(frozen=True, kw_only=True)
class MatrixShard:
    """A part of a matrix and who holds it.

    Args:
        rows, columns: (from, to) as shares of the matrix, 0 to 1.
        ranks: who holds it.
        partial: each of them has a part of every sum.
    """

    rows: tuple[float, float] = (0, 1)
    columns: tuple[float, float] = (0, 1)
    ranks: tuple[int, ...]
    partial: bool = False


@dataclass(frozen=True, kw_only=True)
class SplitMatrix:
    """A matrix with its name (a key of viz.words after "splits.") and its shards."""

    name: str
    shards: tuple[MatrixShard, ...]
    height: float = 1.0
    width: float = 1.0


@dataclass(frozen=True, kw_only=True)
class SplitChoice:
    """One frame: lines of matrices and of signs (keys of viz.words after "splits.")."""

    name: str
    num_ranks: int
    lines: tuple[tuple[SplitMatrix | str, ...], ...]


def split_choice(name: str) -> SplitChoice:
    """A choice of CHOICES on four ranks.

    Raises:
        ValueError: for a name that is none.
    """
    everyone = tuple(range(4))
    whole_x, whole_y = _whole("x", everyone), _whole("y", everyone)
    parts_of_y = _partial("y", everyone)
    lines: list[list[SplitMatrix | str]]
    match name:
        case "columns":
            lines = [[whole_x, "times", _columns("w"), "equals", _columns("y")]]
            lines[0] += ["all_gather", whole_y]
        case "rows":
            lines = [[_columns("x"), "times", _rows("w"), "equals", parts_of_y]]
            lines[0] += ["all_reduce", whole_y]
        case "blocks":
            x = _halves("x", ((0, 1), (2, 3)))
            made = _halves("y", ((0, 2), (1, 3)), partial=True)
            summed = _halves("y", ((0, 2), (1, 3)))
            lines = [[x, "times", _blocks("w"), "equals", made]]
            lines.append(["all_reduce", summed, "all_gather", whole_y])
        case "mlp":
            lines = [[whole_x, "times", _columns("gate_up"), "silu", _columns("h")]]
            lines.append([_columns("h"), "times", _rows("down"), "equals", parts_of_y])
            lines[1] += ["all_reduce", whole_y]
        case "attention":
            lines = [[whole_x, "times", _columns("qkv"), "heads", _columns("h")]]
            lines.append([_columns("h"), "times", _rows("o"), "equals", parts_of_y])
            lines[1] += ["all_reduce", whole_y]
        case "embedding_columns":
            lines = [[*_looked_up(_columns("table")), _columns("y"), "all_gather", whole_y]]
        case "embedding_words":
            lines = [[*_looked_up(_rows("table")), parts_of_y, "all_reduce", whole_y]]
        case _:
            raise ValueError(f"split {name!r} is not one of {CHOICES}")
    return SplitChoice(name=name, num_ranks=4, lines=tuple(tuple(line) for line in lines))


def split_label(choice: SplitChoice) -> str:
    """What joins the parts, in one line."""
    return word(f"splits.{choice.name}.label")


def split_alt(choice: SplitChoice) -> str:
    """The picture in words, for readers who do not see it."""
    return word(f"splits.{choice.name}.alt", ranks=choice.num_ranks)


def draw_split(axes: Axes, choice: SplitChoice) -> Axes:
    """The lines of a choice, one under the other; size the axes alike for all frames."""
    plain_axes(axes)
    first = 0.0 if len(choice.lines) > 1 else -1.75 / 2  # a single line is centred
    for number, line in enumerate(choice.lines):
        left, middle = 0.0, first - 1.75 * number
        for item in line:
            if isinstance(item, SplitMatrix):
                _draw_matrix(axes, item, (left, middle))
                left += item.width
            else:
                left += _draw_sign(axes, item, (left, middle))
    axes.set(xlim=(-0.05, 5.9), ylim=(-2.65, 0.8))
    axes.set_title(word(f"splits.{choice.name}.title"), size=WORD_SIZE, color=INK)
    return axes


def _draw_matrix(axes: Axes, matrix: SplitMatrix, place: tuple[float, float]) -> None:
    """The matrix with its left edge at a place, centred on its height."""
    left, middle = place
    top = middle + matrix.height / 2
    for shard in matrix.shards:
        corner = (left + matrix.width * shard.columns[0], top - matrix.height * shard.rows[1])
        width = matrix.width * (shard.columns[1] - shard.columns[0])
        height = matrix.height * (shard.rows[1] - shard.rows[0])
        box = Rectangle(corner, width, height, edgecolor=INK, linewidth=0.8)
        box.set_facecolor(_colour(shard))
        if shard.partial:
            box.set(hatch="///", edgecolor=COMMUNICATION, linewidth=1.6)
        axes.add_patch(box)
        if not shard.partial or width < matrix.width:
            put_word(axes, (corner[0] + width / 2, corner[1] + height / 2), _held_by(shard))
    above = (left + matrix.width / 2, top + 0.05)
    put_word(axes, above, word(f"splits.{matrix.name}"), size=WORD_SIZE, vertical="bottom")
    if any(shard.partial for shard in matrix.shards):
        below = (left + matrix.width / 2, top - matrix.height - 0.05)
        put_word(axes, below, word("splits.sum"), vertical="top")


def _draw_sign(axes: Axes, name: str, place: tuple[float, float]) -> float:
    """A sign or a collective between two matrices; returns the width that it takes."""
    collective = name in ("all_reduce", "all_gather")
    wide = collective or name in ("silu", "heads", "lookup")
    width = 1.15 if wide else 0.35
    centre = (place[0] + width / 2, place[1])
    if wide:
        start, end = (place[0] + 0.08, place[1] - 0.3), (place[0] + width - 0.08, place[1] - 0.3)
        colour = COMMUNICATION if collective else INK
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2, "mutation_scale": 14}
        axes.annotate("", end, start, arrowprops=arrow)
        centre = (centre[0], place[1] - 0.18)
    vertical = "bottom" if wide else "center"
    size = SMALL_WORD_SIZE if wide else WORD_SIZE
    put_word(axes, centre, word(f"splits.{name}"), size=size, vertical=vertical)
    return width


def _colour(shard: MatrixShard) -> str:
    if shard.partial:
        return PAPER
    return RANK_COLOURS[shard.ranks[0]] if len(shard.ranks) == 1 else IDLE


def _held_by(shard: MatrixShard) -> str:
    return ", ".join(map(str, shard.ranks)) if len(shard.ranks) < 4 else word("splits.all")


def _whole(name: str, ranks: tuple[int, ...]) -> SplitMatrix:
    return SplitMatrix(name=name, shards=(MatrixShard(ranks=ranks),))


def _partial(name: str, ranks: tuple[int, ...]) -> SplitMatrix:
    return SplitMatrix(name=name, shards=(MatrixShard(ranks=ranks, partial=True),))


def _looked_up(table: SplitMatrix) -> list[SplitMatrix | str]:
    """All tokens on every rank, looked up in its part of the table."""
    tokens = replace(_whole("tokens", tuple(range(4))), width=0.3)
    return [tokens, "lookup", replace(table, width=0.75), "equals"]


def _columns(name: str) -> SplitMatrix:
    """One strip of columns a rank."""
    shards = [MatrixShard(columns=(r / 4, (r + 1) / 4), ranks=(r,)) for r in range(4)]
    return SplitMatrix(name=name, shards=tuple(shards))


def _rows(name: str) -> SplitMatrix:
    shards = [MatrixShard(rows=(r / 4, (r + 1) / 4), ranks=(r,)) for r in range(4)]
    return SplitMatrix(name=name, shards=tuple(shards))


def _blocks(name: str) -> SplitMatrix:
    """Block (i, j) of 2×2 on rank 2i + j."""
    shards = [
        MatrixShard(rows=(i / 2, (i + 1) / 2), columns=(j / 2, (j + 1) / 2), ranks=(2 * i + j,))
        for i in range(2)
        for j in range(2)
    ]
    return SplitMatrix(name=name, shards=tuple(shards))


def _halves(
    name: str, ranks: tuple[tuple[int, ...], tuple[int, ...]], *, partial: bool = False
) -> SplitMatrix:
    """The left and the right half of the columns, each on two ranks."""
    shards = [
        MatrixShard(columns=(half / 2, (half + 1) / 2), ranks=ranks[half], partial=partial)
        for half in range(2)
    ]
    return SplitMatrix(name=name, shards=tuple(shards))
