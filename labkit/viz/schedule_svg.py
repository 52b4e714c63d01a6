"""The timeline of a schedule as a few hundred short strokes of SVG, for figures with many frames.

Colours and lanes are those of `labkit.viz.schedule`. Where that one draws a figure of 30 kB with
numbers in the bars, this one spends about ten bytes a bar, so that an explorer with hundreds of
frames fits on a page. A point marks micro-batch 0, to follow it through the stages.
"""

from collections.abc import Sequence
from urllib.parse import quote

from labkit.viz.schedule import COLOURS, Bar, Message
from labkit.viz.style import COMMUNICATION, IDLE, INK, PAPER

WIDTH = 1200  # units of the picture, integers only
ROW = 40
BAR = 30  # of it
LANE = 6
STRIPE = 5
GAP = 2


def schedule_svg(
    bars: Sequence[Bar], *, num_ranks: int, end: float, messages: Sequence[Message] = ()
) -> str:
    """A picture as wide as `end`, without words: rank 0 on top, time to the right."""
    scale = WIDTH / end
    height = ROW * num_ranks
    step = round(max(each.end for each in bars) * scale)
    ground = "".join(f"M0 {_y(rank)}h{step}" for rank in range(num_ranks))
    parts = [_path(ground, IDLE, BAR)]
    for kind, colour in COLOURS.items():
        strokes = _strokes([each for each in bars if each.kind == kind], scale)
        parts.append(_path(strokes, colour, BAR))
    second = _strokes([each for each in bars if each.chunk % 2], scale)
    parts.append(_path(second, PAPER, STRIPE, shift=BAR // 2 - STRIPE))
    parts.append(_path(_strokes(messages, scale), COMMUNICATION, LANE, shift=(BAR + LANE) // 2))
    points = "".join(
        f"M{round((each.start + each.end) / 2 * scale)} {_y(each.rank)}h0"
        for each in bars
        if each.micro_batch == 0
    )
    parts.append(_path(points, INK, 15, cap="round"))
    parts.append(_path(points, PAPER, 11, cap="round"))
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'


def address(svg: str) -> str:
    """The picture inside an address, for src="…"; shorter than base64."""
    return "data:image/svg+xml," + quote(svg.replace('"', "'"), safe=" ='/:,.-;")


def _y(rank: int) -> int:
    """The middle of a rank's bars."""
    return rank * ROW + BAR // 2 + 2


def _strokes(pieces: Sequence[Bar] | Sequence[Message], scale: float) -> str:
    """A horizontal stroke for each, with a gap behind it; from one to the next by differences."""
    text = []
    x, y = 0, 0
    for each in pieces:
        start = round(each.start * scale)
        long = max(1, round(each.end * scale) - start - GAP)
        text.append(f"m{start - x} {_y(each.rank) - y}h{long}")
        x, y = start + long, _y(each.rank)
    return "".join(text)


def _path(strokes: str, colour: str, width: int, *, shift: int = 0, cap: str = "") -> str:
    if not strokes:
        return ""
    extra = f' transform="translate(0 {shift})"' if shift else ""
    extra += f' stroke-linecap="{cap}"' if cap else ""
    return f'<path stroke="{colour}" stroke-width="{width}"{extra} d="{strokes}"/>'
