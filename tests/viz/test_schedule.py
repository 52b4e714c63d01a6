"""A schedule's bars stand where simulator or log say, and a reader can choose among schedules.

Oracles: a hand-made schedule of two ranks, its log replayed by hand, and every combination of a
small set of choices.
"""

import re
from dataclasses import dataclass
from urllib.parse import unquote

import pytest
from ipywidgets.widgets import widget
from ipywidgets.widgets.widget_link import DirectionalLink
from matplotlib.colors import to_rgba

from labkit.measure.events import Compute, Launch, Mark, Wait
from labkit.measure.fabric import Fabric, replay
from labkit.parallel.pipeline import gpipe, simulate_schedule
from labkit.viz import style
from labkit.viz.choices import Setting, choices
from labkit.viz.schedule import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Bar,
    Message,
    bar,
    draw_schedule,
    replayed_bars,
    replayed_messages,
    schedule_legend,
    simulated_bars,
    simulated_messages,
)
from labkit.viz.schedule_svg import address, schedule_svg


@dataclass(frozen=True)
class Span:
    action: str
    start_s: float
    end_s: float


# Two ranks, one micro-batch, the second rank splits its backward; messages of half a second.
BY_HAND = (
    (Span("F0", 0, 1), Span("B0", 4, 6)),
    (Span("F0", 1.5, 2.5), Span("I0", 2.5, 3.5), Span("W0", 3.5, 4.5)),
)
SENDS = {(0, "F0"): 1, (1, "I0"): 0}


def receiver(rank, action):
    return SENDS.get((rank, action))


def marked_log(rank):
    """The same schedule as a run would have logged it: marks before each action."""
    link = {"axis": "pp", "ranks": (0, 1), "bytes": 4, "peer": 1 - rank}
    first, second = ("send", "recv") if rank == 0 else ("recv", "send")
    there = [Launch(id=0, operation=first, **link), Wait(id=0)]
    back = [Launch(id=1, operation=second, **link), Wait(id=1)]
    if rank == 0:
        return [Mark(name="F0"), Compute(flops=1), *there, *back, *action("B0", 2)]
    return [*there, *action("F0", 1), *action("I0", 1), back[0], *action("W0", 1), back[1]]


def action(name, flops):
    """A mark and two pieces of arithmetic."""
    return [Mark(name=name), Compute(flops=flops / 2), Compute(flops=flops / 2)]


REPLAYED = replay([marked_log(0), marked_log(1)], Fabric(alpha=0.5, beta=0.0, flops=1.0))


def drawn(axes):
    """(start, end, colour) of every bar, by rank, but the ground of the rows."""
    found = set()
    for collection in axes.collections:
        for path in collection.get_paths():
            box, colour = path.get_extents(), tuple(collection.get_facecolor()[0])
            if colour != to_rgba(style.IDLE):
                found.add((round(box.y0), box.x0, box.x1, colour))
    return found


def test_names_of_actions():
    expected = Bar(rank=2, kind="I", micro_batch=13, chunk=1, start=1, end=2)
    assert bar(2, "I13.1", 1, 2) == expected
    assert bar(0, "F3", 0, 1).chunk == 0
    for name in ("compute", "F", "X3", "F3 F4"):
        with pytest.raises(ValueError, match=f'"{name}" names no action'):
            bar(0, name, 0, 1)


def test_a_simulated_and_a_replayed_run_give_the_same_bars():
    by_start = {"key": lambda each: (each.rank, each.start)}
    simulated = sorted(simulated_bars(BY_HAND), **by_start)
    assert sorted(replayed_bars(REPLAYED), **by_start) == simulated
    assert [(each.rank, each.kind, each.start, each.end) for each in simulated] == [
        (0, "F", 0, 1),
        (0, "B", 4, 6),
        (1, "F", 1.5, 2.5),
        (1, "I", 2.5, 3.5),
        (1, "W", 3.5, 4.5),
    ]


def test_a_simulated_and_a_replayed_run_give_the_same_messages():
    expected = {(rank, start, start + 0.5) for rank in (0, 1) for start in (1, 3.5)}
    for messages in (simulated_messages(BY_HAND, receiver, 0.5), replayed_messages(REPLAYED)):
        assert {(each.rank, each.start, each.end) for each in messages} == expected


def test_marks_that_name_no_action_are_left_out():
    log = [Mark(name="optimizer"), Compute(flops=1), Mark(name="F0"), Compute(flops=1)]
    bars = replayed_bars(replay([log], Fabric(alpha=0.5, beta=0.0, flops=1.0)))
    assert bars == [bar(0, "F0", 1, 2)]


def test_the_simulator_is_drawn_as_it_is():
    bars = simulated_bars(simulate_schedule(gpipe(3, 4)).ranks)
    assert len(bars) == 3 * 4 * 2
    last = [each for each in bars if each.rank == 2 and each.kind == "F"]
    assert [(each.micro_batch, each.start, each.end) for each in last] == [
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 5),
        (3, 5, 6),
    ]


def test_bars_stand_in_their_row_and_colour():
    axes = style.new_figure(2).add_subplot()
    draw_schedule(axes, simulated_bars(BY_HAND), "by hand", num_ranks=2, end=8)
    forward, backward, weight = map(to_rgba, (FORWARD, BACKWARD, WEIGHT))
    assert drawn(axes) == {
        (0, 0, 1, forward),
        (0, 4, 6, backward),
        (1, 1.5, 2.5, forward),
        (1, 2.5, 3.5, backward),
        (1, 3.5, 4.5, weight),
    }
    assert (axes.get_xlim(), axes.get_title()) == ((0, 8), "by hand")
    assert [text.get_text() for text in axes.texts] == ["0"] * 5


def test_messages_have_a_lane_of_their_own():
    axes = style.new_figure(2).add_subplot()
    messages = simulated_messages(BY_HAND, receiver, 0.5)
    draw_schedule(axes, simulated_bars(BY_HAND), "by hand", num_ranks=2, messages=messages)
    boxes = {"bars": [], "messages": []}
    for collection in axes.collections:
        colour = tuple(collection.get_facecolor()[0])
        kind = "messages" if colour == to_rgba(style.COMMUNICATION) else "bars"
        if colour != to_rgba(style.IDLE):
            boxes[kind] += [path.get_extents() for path in collection.get_paths()]
    assert len(boxes["messages"]) == 4
    for rank in (0, 1):
        lanes = [box for box in boxes["messages"] if round(box.y0) == rank]
        lowest = max(box.y1 for box in boxes["bars"] if round(box.y0) == rank)
        assert min(box.y0 for box in lanes) >= lowest - 1e-12


def test_a_narrow_bar_has_no_number_and_a_second_chunk_a_stripe():
    axes = style.new_figure(2).add_subplot()
    bars = [bar(0, "F7", 0, 1), bar(0, "F8.1", 1, 101)]
    draw_schedule(axes, bars, "", num_ranks=1)
    assert [text.get_text() for text in axes.texts] == ["8"]
    stripes = [c for c in axes.collections if tuple(c.get_facecolor()[0]) == to_rgba(style.INK)]
    assert len(stripes) == 1


def test_legend_names_what_is_drawn_and_idle():
    axes = style.new_figure(2).add_subplot()
    schedule_legend(axes, ["F", "W", "message"])
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["forward", "gradient of the weights", "message", "idle"]


def strokes(svg):
    """Rank, start and length of every bar in the small picture."""
    found = []
    for path in re.findall(r'stroke-width="30" d="([^"]*)"', svg)[1:]:  # the first is the ground
        x = y = 0
        for dx, dy, length in re.findall(r"m(-?\d+) (-?\d+)h(\d+)", path):
            x, y = x + int(dx), y + int(dy)
            found.append((y // 40, x, int(length)))
            x += int(length)
    return sorted(found)


def test_the_small_picture_has_the_same_bars():
    svg = schedule_svg(simulated_bars(BY_HAND), num_ranks=2, end=6)
    assert strokes(svg) == [(0, 0, 198), (0, 800, 398), (1, 300, 198), (1, 500, 198), (1, 700, 198)]
    messages = [Message(rank=0, start=1, end=1.5)]
    assert style.COMMUNICATION in schedule_svg(
        simulated_bars(BY_HAND), num_ranks=2, end=6, messages=messages
    )
    assert style.COMMUNICATION not in svg


def test_the_address_holds_the_picture_and_no_quote_or_angle():
    svg = schedule_svg(simulated_bars(BY_HAND), num_ranks=2, end=6)
    text = address(svg)
    head, _, body = text.partition(",")
    assert head == "data:image/svg+xml"
    assert unquote(body) == svg.replace('"', "'")
    assert not set(text) & set('"<>#')


def test_a_frame_of_the_explorer_is_small():
    bars = simulated_bars(simulate_schedule(gpipe(8, 16)).ranks)
    assert len(address(schedule_svg(bars, num_ranks=8, end=80))) < 15 * len(bars)


FIRST = Setting(name="letter", values="ab", options=["A", "B"], first=1)
SECOND = Setting(name="number", values=[1, 2, 3, 4, 5], options=list("12345"))


def chosen(box, *places):
    """Walk down the stacks."""
    node = box.children[-1]
    for place in places:
        node = node.children[place]
    return node.value


def test_every_combination_has_its_pane():
    box = choices([FIRST, SECOND], lambda letter, number: f"{letter}{number}")
    for i, letter in enumerate("ab"):
        for j in range(5):
            assert chosen(box, i, j) == f"{letter}{j + 1}"


def test_controls_are_linked_to_every_stack_of_their_level_in_the_browser():
    box = choices([FIRST, SECOND], lambda letter, number: f"{letter}{number}")
    letters, numbers = (row.children[1] for row in box.children[:2])
    assert (letters.index, numbers.index) == (1, 0)
    assert (letters.description, numbers.description) == ("", "")
    outer = box.children[-1]
    assert (outer.selected_index, [each.selected_index for each in outer.children]) == (1, [0, 0])
    links = [w for w in widget._instances.values() if isinstance(w, DirectionalLink)]
    for control, stacks in ((letters, [outer]), (numbers, outer.children)):
        targets = [link.target for link in links if link.source == (control, "index")]
        assert targets == [(stack, "selected_index") for stack in stacks]


def test_equal_panes_are_kept_once():
    box = choices([FIRST, SECOND], lambda letter, number: letter)
    panes = {id(pane) for stack in box.children[-1].children for pane in stack.children}
    assert len(panes) == 2


def test_a_page_holds_one_layout_for_all_panes():
    box = choices([FIRST, SECOND], lambda letter, number: f"{letter}{number}")
    outer = box.children[-1]
    panes = [pane for stack in outer.children for pane in stack.children]
    assert {each.layout.model_id for each in (outer, *outer.children, *panes)} == {
        outer.layout.model_id
    }
    assert len({pane.style.model_id for pane in panes}) == 1


def test_settings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="number: 2 values with 1 options"):
        choices([FIRST, Setting(name="number", values=[1, 2], options=["1"])], str)
    with pytest.raises(ValueError, match="0 settings"):
        choices([], str)
