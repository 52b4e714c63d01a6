"""Four cuts of a batch and a model: who holds what, and that each is drawn and told."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from labkit.viz.cuts import ALL, CUTS, NUM_RANKS, cut, cuts_alt, draw_cuts
from labkit.viz.splits import RANK_COLOURS
from labkit.viz.style import IDLE, new_figure


def share(chosen, rank):
    """The part of the model that a rank holds, rows alike."""
    held = [sum(p in (rank, ALL) for p in row) / len(row) for row in chosen.layers]
    return sum(held) / len(held)


@pytest.mark.parametrize(
    ("name", "held"), [("data", 1), ("layer", 1 / 4), ("matrix", 1 / 4), ("expert", 5 / 8)]
)
def test_every_rank_holds_as_much_of_the_model(name, held):
    assert [share(cut(name), rank) for rank in range(NUM_RANKS)] == [held] * NUM_RANKS


@pytest.mark.parametrize("name", CUTS)
def test_the_batch_is_cut_where_the_model_is_copied(name):
    batch = cut(name).batch
    copied = any(row == (ALL,) for row in cut(name).layers)
    assert batch == (tuple(range(NUM_RANKS)) if copied else (ALL,))


def test_boxes_have_the_colours_of_their_ranks_and_do_not_overlap():
    picture = draw_cuts(new_figure(5.4).add_subplot())
    boxes = [patch for patch in picture.patches if isinstance(patch, Rectangle)]
    parts = [rank for name in CUTS for rank in (*cut(name).batch, *sum(cut(name).layers, ()))]
    assert len(boxes) == len(parts)
    wanted = sorted(IDLE if rank is ALL else RANK_COLOURS[rank] for rank in parts)
    assert sorted(to_hex(box.get_facecolor()) for box in boxes) == wanted
    inner = [box.get_bbox().shrunk(0.99, 0.99) for box in boxes]
    assert not any(a.overlaps(b) for i, a in enumerate(inner) for b in inner[:i])
    low, high = picture.get_xlim()
    assert all(low <= box.get_x() and box.get_x() + box.get_width() <= high for box in boxes)


def test_alt_text_tells_all_four():
    told = cuts_alt()
    assert "over 4 ranks" in told
    assert all(f"By {name}: " in told for name in CUTS)


def test_a_cut_that_is_none():
    with pytest.raises(ValueError, match="cut 'sequence' is not one of"):
        cut("sequence")
