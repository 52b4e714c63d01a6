"""The slider works without Python, each picture has an alt text, outputs are the same each time."""

import base64
import re

import pytest
from ipywidgets.widgets import widget
from ipywidgets.widgets.widget_link import Link

from labkit.viz.frames import frames, show
from labkit.viz.style import Picture, new_figure, svg


def drawn(number):
    figure = new_figure(1)
    figure.add_subplot().set_title(str(number))
    return figure


def test_slider_is_linked_to_the_stack_in_the_browser():
    box = frames([drawn(1), drawn(2), drawn(3)], ["a", "b", "c"], ["x", "y", "z"])
    (name, slider), stack = box.children[0].children, box.children[1]
    assert (name.value, slider.description) == ("step", "")  # see frames.py: MathJax
    assert (slider.min, slider.max, slider.value, stack.selected_index) == (0, 2, 0, 0)
    links = [w for w in widget._instances.values() if isinstance(w, Link)]
    link = next(link for link in links if link.source[0] is slider)
    assert link.source == (slider, "value")
    assert link.target == (stack, "selected_index")


def test_each_frame_is_svg_with_its_own_alt_text_and_label():
    stack = frames([drawn(1), drawn(2)], ["a < b", "c"], ['say "one"', "two"]).children[1]
    first = stack.children[0].value
    assert 'alt="say &quot;one&quot;"' in first
    assert "a &lt; b</div>" in first
    data = re.search(r"base64,([^\"]+)", first).group(1)
    assert "<svg" in base64.b64decode(data).decode()


def test_unequal_lengths_tell_all_three_numbers():
    with pytest.raises(ValueError, match="2 figures with 1 labels and 2 alt texts"):
        frames([drawn(1), drawn(2)], ["a"], ["x", "y"])
    with pytest.raises(ValueError, match="0 figures"):
        frames([], [], [])


def test_plain_text_is_fixed_and_the_widget_is_kept():
    box = frames([drawn(1)], ["a"], ["x"])
    bundle = show(box, "ring, 7 frames")._repr_mimebundle_()
    assert bundle["text/plain"] == "ring, 7 frames"
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == box.model_id


def test_same_figure_same_bytes_without_date():
    assert svg(drawn(1)) == svg(drawn(1))
    assert "<dc:date>" not in svg(drawn(1))
    assert repr(Picture(drawn(1))) == "Picture()"
    assert Picture(drawn(1))._repr_svg_() == svg(drawn(1))
