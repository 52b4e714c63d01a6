"""Two pictures of experts: one token through a router, and copies over ranks and back.

The first is drawn from one token's scores. A chosen expert is dark, the others are grey: they do no
work. The second is drawn from the choices of all tokens. A square is a copy in the colour of its
token's rank; above, the number in it is its expert. An orange line goes to another rank, a grey
one stays at home.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.viz.experts_moves import Choices, Move, loads_of, moves, num_away
from labkit.viz.splits import RANK_COLOURS
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

GREY = "#999999"
SIDE = 0.34  # of a copy's square
ROWS = {"copies": 4.6, "work": 2.95, "returned": 1.3, "added": 0.35}  # heights of the squares
TOP = ROWS["copies"]


def chosen_of(scores: Sequence[float], top_k: int) -> list[tuple[int, float]]:
    """(expert, weight) of the largest scores, the best first."""
    best = sorted(range(len(scores)), key=lambda expert: -scores[expert])[:top_k]
    total = sum(scores[expert] for expert in best)
    return [(expert, scores[expert] / total) for expert in best]


def draw_router(axes: Axes, scores: Sequence[float], top_k: int) -> Axes:
    """One token: scores at the lines to the experts, weights at those from the chosen ones."""
    plain_axes(axes)
    weights = dict(chosen_of(scores, top_k))
    middle = (len(scores) - 1) * 0.6 / 2
    _box(axes, (0.3, middle), (0.5, 0.5), word("experts.token"))
    _box(axes, (1.7, middle), (1.1, 0.6), word("experts.router"), IDLE)
    _line(axes, (0.55, middle), (1.15, middle), INK)
    for expert, score in enumerate(scores):
        height = (len(scores) - 1 - expert) * 0.6
        works = expert in weights
        colour = COMPUTE if works else IDLE
        name = word("experts.expert", n=expert)
        start, end, look = (2.25, middle), (4.0, height), (INK, 1.6) if works else (GREY, 0.6)
        _line(axes, start, end, *look)
        _box(axes, (4.6, height), (1.2, 0.44), name, colour, PAPER if works else INK)
        _tag(axes, _between(start, end, 0.72), _score(score))
        if works:
            start, end = (5.2, height), (6.75, middle)
            _line(axes, start, end, INK, 1.6)
            told = word("experts.weight", weight=weights[expert])
            _tag(axes, _between(start, end, 0.48), told, 0.8)
    _box(axes, (7.0, middle), (0.5, 0.5), word("experts.sum"))
    _line(axes, (7.25, middle), (7.65, middle), INK)
    _box(axes, (7.9, middle), (0.5, 0.5), word("experts.out"))
    axes.set(xlim=(0, 8.2), ylim=(-0.35, 2 * middle + 0.35))
    title = word("experts.router_title", top_k=top_k, experts=len(scores))
    axes.set_title(title, size=WORD_SIZE, color=INK)
    return axes


def router_alt(scores: Sequence[float], top_k: int) -> str:
    """The picture in words."""
    chosen = chosen_of(scores, top_k)
    names = ", ".join(word("experts.expert", n=expert) for expert, _ in chosen)
    weights = ", ".join(f"{weight:.2f}" for _, weight in chosen)
    told = ", ".join(map(_score, scores))
    numbers = {"experts": len(scores), "top_k": top_k, "weights": weights}
    return word("experts.router_alt", scores=told, chosen=names, **numbers)


def draw_dispatch(axes: Axes, choices: Choices, num_experts: int) -> Axes:
    """Copies to their experts and back, a column of the picture a rank."""
    plain_axes(axes)
    made = moves(choices, num_experts)
    width = SIDE * max(_most(made, num_ranks=len(choices)), len(choices[0])) + 0.45
    for rank in range(len(choices)):
        _ground(axes, rank, width, num_experts // len(choices))
    for move in made:
        start = _place(move.source, move.place, "copies", width)
        work = _place(move.target, move.there, "work", width)
        back = _place(move.source, move.place, "returned", width)
        colour = COMMUNICATION if move.source != move.target else GREY
        low, high = -SIDE / 2, SIDE / 2
        _line(axes, (start[0], start[1] + low), (work[0], work[1] + high), colour, 1.1)
        _line(axes, (work[0], work[1] + low), (back[0], back[1] + high), colour, 1.1)
        for at in (start, work, back):
            _square(axes, at, RANK_COLOURS[move.source], str(move.expert))
    for rank, tokens in enumerate(choices):
        for token in range(len(tokens)):
            _square(axes, _place(rank, token, "added", width), RANK_COLOURS[rank], "")
    right = width * len(choices)
    _margin(axes)
    axes.set(xlim=(-1.6, right), ylim=(-0.1, TOP + 0.8))
    axes.set_title(_dispatch_title(made), size=WORD_SIZE, color=INK)
    return axes


def dispatch_alt(choices: Choices, num_experts: int) -> str:
    """The picture in words."""
    made = moves(choices, num_experts)
    loads = ", ".join(str(n) for n in loads_of(made, len(choices)))
    sizes = {"ranks": len(choices), "share": num_experts // len(choices), "copies": len(made)}
    told = {"tokens": len(choices[0]), "away": num_away(made), "loads": loads}
    return word("experts.dispatch_alt", **sizes, **told)


def _dispatch_title(made: list[Move]) -> str:
    busiest = max(move.there for move in made) + 1
    return word("experts.dispatch_title", away=num_away(made), copies=len(made), busiest=busiest)


def _most(made: list[Move], *, num_ranks: int) -> int:
    sent = [sum(move.source == rank for move in made) for rank in range(num_ranks)]
    return max(*sent, *loads_of(made, num_ranks))


def _place(rank: int, number: int, row: str, width: float) -> tuple[float, float]:
    """The middle of a square."""
    return rank * width + 0.2 + SIDE * (number + 0.5), ROWS[row]


def _ground(axes: Axes, rank: int, width: float, share: int) -> None:
    """A rank's column, its name, and the bar of its experts."""
    left = rank * width + 0.08
    column = Rectangle((left, 0), width - 0.16, TOP + 0.4)
    column.set(facecolor=PAPER, edgecolor="#bbbbbb", linewidth=0.8)
    axes.add_patch(column)
    bar = Rectangle((left, ROWS["work"] - 0.32), width - 0.16, 0.64)
    bar.set(facecolor=IDLE, edgecolor=INK, linewidth=0.8)
    axes.add_patch(bar)
    name = word("experts.rank", rank=rank)
    put_word(axes, (left + width / 2 - 0.08, TOP + 0.6), name)


def _margin(axes: Axes) -> None:
    """What happens in each row, and between the rows."""
    for row, height in ROWS.items():
        put_word(axes, (-0.8, height), word(f"experts.{row}"))
    for name, above, below in (("dispatch", "copies", "work"), ("combine", "work", "returned")):
        between = (ROWS[above] + ROWS[below]) / 2
        put_word(axes, (-0.8, between), word(f"experts.{name}"), colour="#a85f00")


def _score(score: float) -> str:
    return word("experts.score", score=score)


def _square(axes: Axes, middle: tuple[float, float], colour: str, text: str) -> None:
    corner = (middle[0] - SIDE / 2, middle[1] - SIDE / 2)
    box = Rectangle(corner, SIDE, SIDE, facecolor=colour, edgecolor=INK, linewidth=0.7, zorder=3)
    axes.add_patch(box)
    if text:
        put_word(axes, middle, text, size=8)


def _between(
    start: tuple[float, float], end: tuple[float, float], share: float
) -> tuple[float, float]:
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])


def _tag(axes: Axes, middle: tuple[float, float], text: str, width: float = 0.6) -> None:
    """Words on a line, which is hidden behind them."""
    corner = (middle[0] - width / 2, middle[1] - 0.16)
    axes.add_patch(Rectangle(corner, width, 0.32, facecolor=PAPER, linewidth=0, zorder=3))
    put_word(axes, middle, text)


def _box(
    axes: Axes,
    middle: tuple[float, float],
    size: tuple[float, float],
    text: str,
    colour: str = PAPER,
    ink: str = INK,
) -> None:
    corner = (middle[0] - size[0] / 2, middle[1] - size[1] / 2)
    box = Rectangle(corner, *size, facecolor=colour, edgecolor=INK, linewidth=0.8, zorder=3)
    axes.add_patch(box)
    put_word(axes, middle, text, colour=ink)


def _line(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str,
    width: float = 1.2,
) -> None:
    axes.plot(*zip(start, end, strict=True), color=colour, linewidth=width, zorder=2)
