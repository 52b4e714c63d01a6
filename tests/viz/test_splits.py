"""Pictures of split products: the shards tile their matrix, and the cuts give the right product.

Oracle: products of real matrices, cut as drawn and joined as drawn.
"""

from itertools import pairwise

import pytest
import torch

from labkit.viz.splits import (
    CHOICES,
    RANK_COLOURS,
    SplitMatrix,
    draw_split,
    split_alt,
    split_choice,
    split_label,
)
from labkit.viz.style import new_figure
from tests.viz.test_style import luminance

SIZE = 8


def matrices(choice):
    return [[item for item in line if isinstance(item, SplitMatrix)] for line in choice.lines]


def area(shard):
    return (shard.rows[1] - shard.rows[0]) * (shard.columns[1] - shard.columns[0])


@pytest.mark.parametrize("name", CHOICES)
def test_shards_tile_their_matrix_and_every_rank_has_one(name):
    for line in matrices(split_choice(name)):
        for matrix in line:
            assert sum(map(area, matrix.shards)) == 1
            assert {rank for shard in matrix.shards for rank in shard.ranks} == {0, 1, 2, 3}


def part(full, shard):
    (top, bottom), (left, right) = shard.rows, shard.columns
    rows, columns = (slice(int(a * SIZE), int(b * SIZE)) for a, b in ((top, bottom), (left, right)))
    return full[rows, columns]


def own(matrix, rank):
    return next(shard for shard in matrix.shards if rank in shard.ranks)


@pytest.mark.parametrize(
    ("name", "line"),
    [("columns", 0), ("rows", 0), ("blocks", 0), ("mlp", 0), ("mlp", 1), ("attention", 1)],
)
def test_what_is_drawn_is_the_product(name, line):
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-4, 5, (SIZE, SIZE), generator=generator).double() for _ in range(2))
    left, right, made = matrices(split_choice(name))[line][:3]
    total = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    for rank in range(4):
        product = part(x, own(left, rank)) @ part(w, own(right, rank))
        target = part(total, own(made, rank))
        assert product.shape == target.shape
        target += product  # a sum over ranks, or each its own place
    assert torch.equal(total, x @ w)
    summed = {shard.partial for shard in made.shards}
    once = all(len(shard.ranks) == 1 for shard in made.shards)
    assert summed == {not once}


@pytest.mark.parametrize("name", CHOICES)
def test_a_picture_has_a_title_a_label_and_an_alt_text(name):
    choice = split_choice(name)
    axes = draw_split(new_figure(3).add_subplot(), choice)
    assert axes.get_title()
    assert split_label(choice)
    assert " ranks" in split_alt(choice)
    drawn = [text.get_text().replace("\n", "") for text in axes.texts]
    assert drawn.count("all") >= 1
    collectives = {"columns": ["all-gather"], "blocks": ["all-reduce", "all-gather"]}
    collectives["embedding_columns"] = ["all-gather"]
    assert [text for text in drawn if text in ("all-reduce", "all-gather")] == collectives.get(
        name, ["all-reduce"]
    )
    right = max(patch.get_x() + patch.get_width() for patch in axes.patches)
    assert right <= axes.get_xlim()[1]


@pytest.mark.parametrize("name", ["embedding_columns", "embedding_words"])
def test_what_is_drawn_is_the_lookup(name):
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(SIZE, (SIZE,), generator=generator)
    table = torch.randint(-4, 5, (SIZE, SIZE), generator=generator).double()
    _, cut, made, _ = matrices(split_choice(name))[0]
    total = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    for rank in range(4):
        (top, bottom), (left, right) = own(cut, rank).rows, own(cut, rank).columns
        rows, columns = (
            slice(int(a * SIZE), int(b * SIZE)) for a, b in ((top, bottom), (left, right))
        )
        known = torch.zeros_like(table)
        known[rows, columns] = table[rows, columns]  # zeros for what the rank does not hold
        target = part(total, own(made, rank))
        target += part(known[words], own(made, rank))
    assert torch.equal(total, table[words])


def test_neighbouring_ranks_differ_in_grey():
    levels = list(map(luminance, RANK_COLOURS))
    assert all(abs(a - b) >= 0.15 for a, b in pairwise(levels))


def test_a_split_that_is_none():
    with pytest.raises(ValueError, match="split 'diagonal' is not one of"):
        split_choice("diagonal")
