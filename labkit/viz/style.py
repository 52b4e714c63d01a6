"""One look for every picture: what a colour means, how large words are, how a figure becomes SVG.

| colour        | means                                    | luminance |
| ------------- | ---------------------------------------- | --------- |
| COMPUTE       | arithmetic on the rank's own device      | 0.31      |
| COMMUNICATION | bytes on a link                          | 0.66      |
| IDLE          | a rank that waits, a place that is empty | 0.93      |

The three differ by at least 0.2 in luminance, so a grey print keeps them apart. The background is
opaque white, so the picture is the same on a light and on a dark page. A figure is 5.6 inches wide
with words of 11 points: on a phone, where it shrinks to two thirds, they can still be read.
"""

import io

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COMPUTE = "#1f5f99"
COMMUNICATION = "#f09c2c"
IDLE = "#ededed"
INK = "#222222"
PAPER = "#ffffff"

WIDTH = 5.6  # inches
WORD_SIZE = 11  # points
SMALL_WORD_SIZE = 9.5  # points: digits inside a drawing

# Line styles that tell curves apart without their colour, in the order in which curves are drawn.
LINE_STYLES = ("-", "--", ":", "-.")
LINE_COLOURS = (COMPUTE, "#b3541e", INK, "#6f8f3f")

_SETTINGS = {"svg.hashsalt": "labkit", "svg.fonttype": "path"}  # same figure, same bytes


def new_figure(height: float, *, width: float = WIDTH) -> Figure:
    """An empty figure that no global state knows of; sizes in inches."""
    return Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")


def plain_axes(axes: Axes) -> Axes:
    """For drawings without a scale: no ticks, no frame, equal units in x and y."""
    axes.set_axis_off()
    axes.set_aspect("equal")
    return axes


def scaled_axes(axes: Axes) -> Axes:
    """For measured quantities: left and bottom spines, words at the house size."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL_WORD_SIZE, colors=INK)
    axes.xaxis.label.set(size=WORD_SIZE, color=INK)
    axes.yaxis.label.set(size=WORD_SIZE, color=INK)
    axes.title.set(size=WORD_SIZE, color=INK)
    return axes


def put_word(
    axes: Axes,
    place: tuple[float, float],
    text: str,
    *,
    size: float = SMALL_WORD_SIZE,
    colour: str = INK,
    vertical: str = "center",
) -> None:
    """Text centred on a place; vertical is matplotlib's va."""
    axes.text(*place, text, size=size, color=colour, ha="center", va=vertical, zorder=4)


def svg(figure: Figure) -> str:
    """The figure as SVG text, the same bytes each time."""
    text = io.StringIO()
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(
            text, format="svg", facecolor=PAPER, metadata={"Date": None, "Creator": None}
        )
    return text.getvalue()


class Picture:
    """What a cell ends with: shown as SVG, printed as a fixed line of text."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def _repr_svg_(self) -> str:
        return svg(self.figure)

    def __repr__(self) -> str:
        return "Picture()"
