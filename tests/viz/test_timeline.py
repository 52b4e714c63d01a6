"""Bars stand where the replay says, on the lane of their kind. Oracle: a log replayed by hand."""

from matplotlib.colors import to_rgba

from labkit.measure.events import Compute, Launch, Wait
from labkit.measure.fabric import Fabric, replay
from labkit.viz import style
from labkit.viz.timeline import draw_timeline, timeline_legend

FABRIC = Fabric(alpha=1.0, beta=0.0, flops=1.0)  # a message takes 1 s, a FLOP takes 1 s


def message(operation, peer):
    return Launch(id=0, operation=operation, axis="world", ranks=(0, 1), bytes=4, peer=peer)


def bars(axes):
    """(start, end, low, high, colour) of every bar but the ground of the rows."""
    found = []
    for collection in axes.collections:
        colour = collection.get_facecolor()[0] if len(collection.get_paths()) else None
        for path in collection.get_paths():
            box = path.get_extents()
            found.append((box.x0, box.x1, box.y0, box.y1, tuple(colour)))
    return [bar for bar in found if bar[4] != to_rgba(style.IDLE)]


def overlapping_step():
    """Rank 0 sends while it computes for 2 s; rank 1 waits for the message."""
    sender = [message("send", 1), Compute(flops=2.0), Wait(id=0)]
    return replay([sender, [message("recv", 0), Wait(id=0)]], FABRIC)


def test_overlap_shows_as_two_lanes():
    axes = draw_timeline(style.new_figure(2).add_subplot(), overlapping_step(), "ring")
    compute, communication = to_rgba(style.COMPUTE), to_rgba(style.COMMUNICATION)
    by_colour = {
        colour: [bar[:4] for bar in bars(axes) if bar[4] == colour]
        for colour in (compute, communication)
    }
    assert [(start, end) for start, end, *_ in by_colour[compute]] == [(0, 2)]
    assert [(start, end) for start, end, *_ in by_colour[communication]] == [(0, 1), (0, 1)]
    assert by_colour[compute][0][3] <= by_colour[communication][0][2]  # above, as y grows downward


def test_one_kind_fills_the_row():
    logs = [[message("send", 1), Wait(id=0)], [message("recv", 0), Wait(id=0)]]
    axes = draw_timeline(style.new_figure(2).add_subplot(), replay(logs, FABRIC), "ring", end_s=4)
    assert {round(high - low, 6) for _, _, low, high, _ in bars(axes)} == {0.8}
    assert axes.get_xlim() == (0, 4)
    assert axes.get_title() == "ring: 1 s of virtual time"


def test_unit_follows_the_length():
    fast = Fabric(alpha=2e-5, beta=0.0, flops=1.0)
    logs = [[message("send", 1), Wait(id=0)], [message("recv", 0), Wait(id=0)]]
    axes = draw_timeline(style.new_figure(2).add_subplot(), replay(logs, fast), "tree")
    assert axes.get_xlabel() == "virtual time, µs"
    assert round(axes.get_xlim()[1], 6) == 20


def test_legend_names_the_lanes_and_idle():
    axes = style.new_figure(2).add_subplot()
    timeline_legend(axes, ["compute", "communication"])
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["compute", "communication", "idle"]
