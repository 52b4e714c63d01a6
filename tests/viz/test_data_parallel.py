"""The picture of data parallelism has a row a rank: bands, copies, gradients, and one mean."""

from collections import Counter

import pytest

from labkit.viz.data_parallel import draw_backward, draw_forward
from labkit.viz.style import new_figure


def drawn(draw, world_size):
    axes = draw(new_figure(3).add_subplot(), world_size)
    arrows = [text for text in axes.texts if text.get_text() == ""]
    return axes, Counter(text.get_text() for text in axes.texts), len(arrows)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_forward_splits_x_copies_w_and_joins_y(size):
    axes, words, arrows = drawn(draw_forward, size)
    assert words["w"] == size
    for rank in range(size):
        assert words[f"x{rank}"] == 1
        assert words[f"y{rank}"] == 2  # on its rank and in the joined output
    assert arrows == 3 * size
    assert len(axes.patches) == 4 * size


@pytest.mark.parametrize("size", [1, 3, 4])
def test_backward_takes_every_gradient_to_one_mean_and_back(size):
    axes, words, arrows = drawn(draw_backward, size)
    assert words["sum / N"] == 1
    assert words["g"] == words["w − ηg"] == size
    assert all(words[f"g{rank}"] == 1 for rank in range(size))
    assert arrows == 3 * size
    assert len(axes.patches) == 3 * size + 1


def test_bands_of_the_batch_touch_and_keep_their_order():
    axes, _, _ = drawn(draw_forward, 4)
    bands = [patch for patch in axes.patches if patch.get_x() == 0.0]
    tops = [band.get_y() + band.get_height() for band in bands]
    assert tops == sorted(tops, reverse=True)
    for above, below in zip(bands, tops[1:], strict=False):
        assert above.get_y() == pytest.approx(below)
