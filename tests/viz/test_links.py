"""Bytes on links: each pair once, with its bytes; the title names the busiest rank. By hand."""

import pytest

from labkit.viz.links import MOST, draw_link_bytes
from labkit.viz.style import new_figure

SERVER = {(0, 1): 4_000_000, (1, 0): 4_000_000, (0, 2): 4_000_000, (2, 0): 2_000_000}
RING = {(rank, (rank + 1) % 4): 6_000_000 for rank in range(4)}


def drawn(name, num_bytes, most=6_000_000):
    axes = draw_link_bytes(new_figure(3).add_subplot(), name, num_bytes, most=most)
    arrows = [text for text in axes.texts if getattr(text, "arrow_patch", None)]
    words = [text.get_text() for text in axes.texts if text.get_text()]
    return axes, arrows, words


@pytest.mark.parametrize(("name", "num_bytes"), [("server", SERVER), ("ring", RING)])
def test_every_link_is_an_arrow_with_its_bytes(name, num_bytes):
    _, arrows, words = drawn(name, num_bytes)
    assert len(arrows) == len(num_bytes)
    assert sorted(text for text in words if "MB" in text) == sorted(
        f"{count // 10**6} MB" for count in num_bytes.values()
    )


def test_width_grows_with_the_bytes():
    _, arrows, _ = drawn("server", SERVER)
    widths = [arrow.arrow_patch.get_linewidth() for arrow in arrows]
    assert widths == pytest.approx([MOST * count / 6e6 for count in SERVER.values()])


def test_title_names_the_busiest_rank():
    assert drawn("server", SERVER)[0].get_title() == (
        "Parameter server\nthrough the busiest rank: 14 MB"
    )
    assert drawn("ring", RING)[0].get_title() == "Ring all-reduce\nthrough the busiest rank: 12 MB"


def test_the_server_stands_in_the_middle():
    axes, _, _ = drawn("server", SERVER)
    assert tuple(axes.lines[0].get_xydata()[0]) == (0.0, 0.0)


def test_no_two_labels_cover_each_other():
    for name, num_bytes in (("server", SERVER), ("ring", RING)):
        axes, _, _ = drawn(name, num_bytes)
        places = [text.get_position() for text in axes.texts if "MB" in text.get_text()]
        for index, (x, y) in enumerate(places):
            assert all(abs(x - a) > 0.5 or abs(y - b) > 0.2 for a, b in places[:index])
