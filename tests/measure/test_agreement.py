"""Rules for pairs of calls: which fit together and which break what, for posts written by hand."""

import dataclasses

import pytest

from labkit.measure.agreement import Post, disagreement

MINE = Post(
    rank=0,
    text="rank 0: f",
    operation="all_reduce",
    axis="dp",
    ranks=[0, 3],
    shapes=[[2, 3]],
    dtype="torch.float32",
    peer=None,
    reduce_op="sum",
    sends=[],
    expects=[],
)
THEIRS = dataclasses.replace(MINE, rank=3, text="rank 3: g")
SEND = dataclasses.replace(MINE, operation="send", peer=3, reduce_op=None)
RECV = dataclasses.replace(THEIRS, operation="recv", peer=0, reduce_op=None)


def pair(**changes):
    return dataclasses.replace(MINE, **changes), dataclasses.replace(THEIRS, **changes)


def test_equal_calls_fit():
    assert disagreement(MINE, THEIRS) is None
    assert disagreement(*pair(operation="barrier", shapes=[], dtype="None")) is None


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"operation": "all_gather"}, "must issue the same operation in the same order"),
        ({"shapes": [[3, 2]]}, "must pass the same shape"),
        ({"shapes": [[6]]}, "must pass the same shape"),
        ({"dtype": "torch.int32"}, "must pass the same dtype"),
        ({"reduce_op": "max"}, "not sum and max"),
        ({"peer": 3}, "must name the same root"),
        ({"ranks": [0, 1, 3]}, "not [0, 3] and [0, 1, 3]"),
    ],
)
def test_a_broken_rule_is_told_with_both_calls_in_rank_order(change, rule):
    other = dataclasses.replace(THEIRS, **change)
    for text in (disagreement(MINE, other), disagreement(other, MINE)):
        assert text.startswith("rank 0: f; rank 3: g: ranks of group 'dp' must")
        assert rule in text


def test_scatter_compares_pieces():
    root, other = pair(operation="scatter", peer=0)
    root = dataclasses.replace(root, shapes=[[4], [5]])
    assert disagreement(root, dataclasses.replace(other, shapes=[[5]])) is None
    assert "shape" in disagreement(root, dataclasses.replace(other, shapes=[[4]]))


def test_all_to_all_compares_both_directions():
    a, b = pair(operation="all_to_all")
    a = dataclasses.replace(a, sends=[1, 2], expects=[1, 4], shapes=[[3]])
    b = dataclasses.replace(b, sends=[4, 0], expects=[2, 0], shapes=[[4]])
    assert disagreement(a, b) is None
    told = disagreement(a, dataclasses.replace(b, sends=[8, 0]))
    assert told.endswith("rank 3 sends 8 bytes to rank 0, which expects 4")


@pytest.mark.parametrize(
    ("shapes", "fits"), [([[2, 3]], True), ([[6]], True), ([[3, 2]], False), ([[5]], False)]
)
def test_messages_agree_on_the_shape_unless_one_is_flat(shapes, fits):
    told = disagreement(SEND, dataclasses.replace(RECV, shapes=shapes))
    assert (told is None) == fits


def test_messages_agree_on_the_dtype():
    assert "same dtype" in disagreement(SEND, dataclasses.replace(RECV, dtype="torch.float64"))


def test_a_post_survives_the_store():
    assert Post.parse(MINE.dump().encode()) == MINE
