"""Four ways to spread training over four ranks: cut the batch, the layers, a matrix, the experts.

A box has the colour and the number of the rank that holds it; a grey one is held by all.

| cut    | batch            | model                          | what is sent                     |
| ------ | ---------------- | ------------------------------ | -------------------------------- |
| data   | a part each      | a copy each                    | gradients, once a step           |
| layer  | all of it        | some layers each               | activations, to the next rank    |
| matrix | all of it        | a part of every matrix each    | activations, in every layer      |
| expert | a part each      | some experts each, rest copied | tokens, to their experts, back   |
"""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from labkit.viz.splits import RANK_COLOURS
from labkit.viz.style import IDLE, INK, SMALL_WORD_SIZE, WORD_SIZE, plain_axes, put_word
from labkit.viz.words import word

CUTS = ("data", "layer", "matrix", "expert")
NUM_RANKS = 4
ALL = None  # held by every rank

Parts = tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Who holds what.

    Args:
        batch: ranks of the parts of the batch, ALL for a part that every rank reads.
        layers: for each row of the model, from the input up, the ranks of its parts.
    """

    name: str
    batch: Parts
    layers: tuple[Parts, ...]


def cut(name: str) -> Cut:
    """A cut of CUTS.

    Raises:
        ValueError: for a name that is none.
    """
    each: Parts = tuple(range(NUM_RANKS))
    whole: Parts = (ALL,)
    match name:
        case "data":
            return Cut(name=name, batch=each, layers=(whole,) * 4)
        case "layer":
            return Cut(name=name, batch=whole, layers=tuple((rank,) for rank in each))
        case "matrix":
            return Cut(name=name, batch=whole, layers=(each,) * 4)
        case "expert":  # attention below its experts, twice
            return Cut(name=name, batch=each, layers=(whole, each) * 2)
    raise ValueError(f"cut {name!r} is not one of {CUTS}")


def draw_cuts(axes: Axes) -> Axes:
    """All four, two beside two, with what each sends under it."""
    plain_axes(axes)
    for place, name in enumerate(CUTS):
        corner = (3.5 * (place % 2), -3.6 * (place // 2))
        _draw_cut(axes, cut(name), corner)
    axes.set(xlim=(-0.3, 6.5), ylim=(-4.2, 3.0))
    axes.set_title(word("cuts.title"), size=WORD_SIZE, color=INK)
    return axes


def cuts_alt() -> str:
    """The picture in words, for readers who do not see it."""
    told = " ".join(word(f"cuts.{name}.alt") for name in CUTS)
    return word("cuts.alt", ranks=NUM_RANKS, told=told)


def _draw_cut(axes: Axes, chosen: Cut, corner: tuple[float, float]) -> None:
    """A column for the batch, and the rows of the model beside it."""
    left, bottom = corner
    height = 2.0
    for row, rank in enumerate(reversed(chosen.batch)):
        part = height / len(chosen.batch)
        _draw_box(axes, (left, bottom + row * part), (0.7, part), rank)
    for row, parts in enumerate(chosen.layers):
        for column, rank in enumerate(parts):
            size = (2.0 / len(parts), height / len(chosen.layers) - 0.1)
            place = (left + 0.95 + column * size[0], bottom + row * (size[1] + 0.1) + 0.05)
            _draw_box(axes, place, size, rank)
    above = bottom + height + 0.08
    put_word(axes, (left + 0.35, above), word("cuts.batch"), vertical="bottom")
    put_word(axes, (left + 1.95, above), word("cuts.model"), vertical="bottom")
    heading = (left + 1.45, bottom + height + 0.42)
    put_word(axes, heading, word(f"cuts.{chosen.name}"), size=WORD_SIZE, vertical="bottom")
    sent = word(f"cuts.{chosen.name}.sent")
    put_word(axes, (left + 1.45, bottom - 0.1), sent, vertical="top")


def _draw_box(
    axes: Axes, place: tuple[float, float], size: tuple[float, float], rank: int | None
) -> None:
    box = Rectangle(place, *size, edgecolor=INK, linewidth=0.8)
    box.set_facecolor(IDLE if rank is ALL else RANK_COLOURS[rank])
    axes.add_patch(box)
    middle = (place[0] + size[0] / 2, place[1] + size[1] / 2)
    text = word("cuts.all") if rank is ALL else str(rank)
    put_word(axes, middle, text, size=SMALL_WORD_SIZE)
