"""Links of each topology, against counts that can be said in one sentence."""

import pytest

from labkit.viz.style import new_figure
from labkit.viz.topology import draw_topology, hierarchical, ring, switch, tree


def degrees(topology):
    counts = dict.fromkeys(topology.places, 0)
    for a, b in (*topology.links, *topology.slow_links):
        counts[a] += 1
        counts[b] += 1
    return counts


@pytest.mark.parametrize("size", [3, 4, 8])
def test_ring_gives_each_rank_two_neighbours(size):
    assert set(degrees(ring(size)).values()) == {2}
    assert len(ring(size).links) == size


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_tree_has_one_link_less_than_ranks_and_reaches_all(size):
    links = tree(size).links
    assert len(links) == size - 1
    reached = {0}
    for parent, child in links:
        assert parent in reached
        reached.add(child)
    assert reached == set(range(size))


def test_tree_is_the_one_that_the_program_sends_along():
    assert set(tree(8).links) == {(0, 1), (0, 2), (1, 3), (0, 4), (1, 5), (2, 6), (3, 7)}


def test_hierarchy_joins_equal_places_of_neighbouring_hosts():
    topology = hierarchical(3, 4)
    assert len(topology.links) == 12
    assert all(b - a == 4 for a, b in topology.slow_links)
    assert len(topology.slow_links) == 8


def test_switch_has_one_link_a_rank():
    counts = degrees(switch(8))
    assert counts.pop("switch") == 8
    assert set(counts.values()) == {1}


@pytest.mark.parametrize(
    "topology", [ring(8), tree(8), hierarchical(2, 4), switch(8)], ids=lambda t: t.name
)
def test_no_two_nodes_cover_each_other(topology):
    places = list(topology.places.values())
    gaps = [abs(a[0] - b[0]) + abs(a[1] - b[1]) for i, a in enumerate(places) for b in places[:i]]
    assert min(gaps) > 0.3


def test_drawing_shows_each_node_and_link():
    topology = hierarchical(2, 4)
    axes = draw_topology(new_figure(2).add_subplot(), topology)
    assert len(axes.lines) == len(topology.links) + len(topology.slow_links) + len(topology.places)
    assert {text.get_text() for text in axes.texts} == {str(rank) for rank in range(8)}
