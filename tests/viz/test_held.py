"""Held weights over a step: the bars keep their data, the title names the peak. By hand."""

from labkit.cost.held import zero3_held_bytes
from labkit.viz.held import draw_held, held_alt
from labkit.viz.style import new_figure

POINTS = zero3_held_bytes([4_000_000] * 3, 2_000_000, group_size=4, number_bytes=4)
WHOLE = 14_000_000 * 4


def test_bars_lines_and_dots_keep_their_data():
    measured = [point.held_bytes for point in POINTS]
    axes = new_figure(3).add_subplot()
    draw_held(axes, POINTS, whole_bytes=WHOLE, measured_bytes=measured)
    assert [bar.get_height() for bar in axes.patches] == [each / 1e6 for each in measured]
    dots, whole, shard = axes.lines
    assert list(dots.get_ydata()) == [each / 1e6 for each in measured]
    assert (whole.get_ydata()[0], shard.get_ydata()[0]) == (56, 14)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [
        *("", "0", "1", "2"),
        *("", "2", "1", "0", ""),
    ]


def test_the_title_and_the_alt_text_name_the_peak():
    axes = draw_held(new_figure(3).add_subplot(), POINTS, whole_bytes=WHOLE)
    assert axes.get_title() == "At most 54 MB of 56 MB are on a rank at once"
    alt = held_alt(POINTS, whole_bytes=WHOLE)
    assert "Between steps 14 MB, at most 54 MB, the whole model 56 MB." in alt
