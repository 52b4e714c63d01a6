"""Groups on nodes. Oracles: ranks laid out and counted, and bandwidths by hand."""

import itertools

import pytest

from labkit.cost.cluster import AXES, LINK_SHARE, Cluster, group_size
from labkit.cost.hardware import device, link
from labkit.cost.layout import Layout

NODES = Cluster(device=device("a100-80"), intra=link("nvlink3"), inter=link("infiniband-hdr"))
LAYOUTS = (
    Layout(dp=4, pp=2, tp=2),
    Layout(dp=2, pp=4, cp=2, tp=8),
    Layout(dp=2, cp=2, ep=2, tp=2, pp=2),
    Layout(dp=16, tp=4),
    Layout(dp=2, tp=16),
    Layout(dp=24),
)
GROUPS = (("tp",), ("cp",), ("pp",), ("dp",), ("dp", "cp"), ("dp", "cp", "ep"))


def members_of_first_rank(layout, axes):
    """Global ranks, tp counted fastest, that differ from rank 0 along `axes` only."""
    places = itertools.product(*(range(getattr(layout, axis)) for axis in reversed(AXES)))
    return [
        rank
        for rank, place in enumerate(places)
        if all(at == 0 or axis in axes for axis, at in zip(reversed(AXES), place, strict=True))
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axes", GROUPS)
def test_ranks_of_a_group_in_a_node_are_counted(layout, axes):
    members = members_of_first_rank(layout, axes)
    assert group_size(layout, axes) == len(members)
    assert NODES.ranks_in_node(layout, axes) == sum(rank < 8 for rank in members)


def test_a_group_in_a_node_has_the_node_s_links_and_one_across_has_its_adapters():
    layout = Layout(dp=16, tp=4)
    assert NODES.bandwidth_bytes_per_s(layout, ("tp",)) == LINK_SHARE * 300e9
    assert NODES.bandwidth_bytes_per_s(layout, ("dp",)) == LINK_SHARE * 2 * 25e9  # two of 8 a node
    whole = Layout(dp=32)
    assert NODES.bandwidth_bytes_per_s(whole, ("dp",)) == LINK_SHARE * 8 * 25e9


def test_many_adapters_are_no_faster_than_the_links_inside():
    slow = Cluster(device=device("rtx4090"), intra=link("pcie4"), inter=link("infiniband-hdr"))
    rate = slow.bandwidth_bytes_per_s(Layout(dp=16), ("dp",))
    assert rate == LINK_SHARE * link("pcie4").bandwidth_bytes_per_s


def test_a_message_between_stages_has_one_adapter():
    near, far = Layout(pp=2, tp=4), Layout(pp=4, tp=4)
    assert NODES.message_bytes_per_s(near) == LINK_SHARE * 300e9
    assert NODES.message_bytes_per_s(far) == LINK_SHARE * 25e9


def test_an_exchange_moves_all_but_the_rank_s_own_part():
    layout = Layout(tp=8)
    assert NODES.exchange_s(layout, ("tp",), 800e9) == pytest.approx(7 / 8 * 800 / 240)
    assert NODES.exchange_s(Layout(dp=8), ("tp",), 800e9) == 0
