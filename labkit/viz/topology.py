"""Who is joined to whom: ring, tree, hierarchy of two levels, switch.

A Topology is data: places of nodes, links between them. Thin lines are links inside a host or of
equal kind; thick dashed lines are the slow ones between hosts.
"""

import math
from dataclasses import dataclass

from matplotlib.axes import Axes

from labkit.viz.style import (
    COMMUNICATION,
    COMPUTE,
    INK,
    PAPER,
    WORD_SIZE,
    plain_axes,
    put_word,
)
from labkit.viz.words import word

Place = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Nodes by name and links by pairs of names.

    Args:
        name: key of the title in words.py, after "topology.".
        places: where each node is drawn; ranks are named by their number, switches by "switch".
        links: joined pairs.
        slow_links: joined pairs whose link is slower, such as between hosts.
    """

    name: str
    places: dict[int | str, Place]
    links: tuple[tuple[int | str, int | str], ...]
    slow_links: tuple[tuple[int | str, int | str], ...] = ()


def ring(world_size: int) -> Topology:
    """Each rank sends to the next; the last sends to the first."""
    links = tuple((rank, (rank + 1) % world_size) for rank in range(world_size))
    return Topology(name="ring", places=_circle(world_size), links=links)


def tree(world_size: int) -> Topology:
    """The binomial tree of labkit.comm.handmade: rank r's parent is r without its highest bit."""
    parents = {rank: rank - (1 << (rank.bit_length() - 1)) for rank in range(1, world_size)}
    leaves = [rank for rank in range(world_size) if rank not in parents.values()]
    leaves.sort(key=lambda rank: bin(rank)[:1:-1], reverse=True)  # children of one parent together
    columns: dict[int, list[int]] = {rank: [] for rank in range(world_size)}
    for column, leaf in enumerate(leaves):
        rank = leaf
        columns[rank].append(column)
        while rank:
            rank = parents[rank]
            columns[rank].append(column)
    places: dict[int | str, Place] = {
        rank: (0.7 * sum(under) / len(under), -0.62 * rank.bit_count())
        for rank, under in columns.items()
    }
    links = tuple((parent, rank) for rank, parent in parents.items())
    return Topology(name="tree", places=places, links=links)


def hierarchical(num_hosts: int, ranks_per_host: int) -> Topology:
    """Rings inside hosts; slow links join rank i of a host with rank i of the next."""
    places: dict[int | str, Place] = {}
    links: list[tuple[int | str, int | str]] = []
    slow: list[tuple[int | str, int | str]] = []
    for host in range(num_hosts):
        first = host * ranks_per_host
        # Seen from the side, and turned, so that no two ranks stand above each other.
        for rank, (x, y) in _circle(ranks_per_host, turn=0.3).items():
            places[first + int(rank)] = (x, 0.3 * y - 1.1 * host)
        for rank in range(ranks_per_host):
            links.append((first + rank, first + (rank + 1) % ranks_per_host))
            if host + 1 < num_hosts:
                slow.append((first + rank, first + ranks_per_host + rank))
    return Topology(name="hierarchical", places=places, links=tuple(links), slow_links=tuple(slow))


def switch(world_size: int) -> Topology:
    """Each rank has one link, to a switch that can add."""
    places = _circle(world_size)
    links = tuple((rank, "switch") for rank in range(world_size))
    return Topology(name="switch", places={**places, "switch": (0.0, 0.0)}, links=links)


def _circle(num_nodes: int, turn: float = 0.0) -> dict[int | str, Place]:
    angles = [math.pi / 2 - turn - 2 * math.pi * i / num_nodes for i in range(num_nodes)]
    return {i: (math.cos(a), math.sin(a)) for i, a in enumerate(angles)}


def draw_topology(axes: Axes, topology: Topology) -> Axes:
    """Nodes as discs with their rank, the switch as a square, links as lines."""
    plain_axes(axes)
    for pairs, width, style in (
        (topology.links, 2.0, "-"),
        (topology.slow_links, 3.0, (0, (2, 1))),
    ):
        for a, b in pairs:
            xs, ys = zip(topology.places[a], topology.places[b], strict=True)
            axes.plot(xs, ys, color=COMMUNICATION, linewidth=width, linestyle=style, zorder=1)
    for node, (x, y) in topology.places.items():
        is_switch = node == "switch"
        marker, colour, size = ("s", INK, 26) if is_switch else ("o", COMPUTE, 20)
        axes.plot(x, y, marker=marker, markersize=size, color=colour, zorder=2)
        text = word("topology.switch_symbol") if is_switch else str(node)
        put_word(axes, (x, y - 0.01), text, colour=PAPER)
    axes.margins(0.15)
    axes.set_title(word(f"topology.{topology.name}"), size=WORD_SIZE, color=INK)
    return axes
