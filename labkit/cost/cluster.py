"""Devices in nodes, one kind of link inside a node and another between nodes.

A group of N ranks, k of them in each node, moves the pieces of a collective in rings: inside one
node over its own links, across nodes over the adapters of its k ranks in that node, all at once:

    bandwidth = intra                   k = N
    bandwidth = min(k * inter, intra)   k < N

Every device has an adapter of its own, as in the machines of the published runs. Ranks are placed
as labkit.comm.mesh counts them: tp next to each other, then ep, cp and pp, and dp farthest apart.

A link delivers LINK_SHARE of its data sheet's bandwidth to a collective; see
assumptions.py.
"""

from dataclasses import dataclass

from labkit.cost.hardware import Device, LinkKind
from labkit.cost.layout import Layout

LINK_SHARE = 0.8
AXES = ("tp", "ep", "cp", "pp", "dp")  # the nearest neighbours first


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """As many nodes of this kind as a layout needs.

    Args:
        intra: joins the devices of a node.
        inter: one device's adapter to other nodes.
    """

    device: Device
    devices_per_node: int = 8
    intra: LinkKind
    inter: LinkKind

    def ranks_in_node(self, layout: Layout, axes: tuple[str, ...]) -> int:
        """How many ranks of a group over these axes share a node."""
        room, inside = self.devices_per_node, 1
        for axis in AXES:
            size = getattr(layout, axis)
            if axis in axes:
                inside *= min(size, room)
            room = max(1, room // size)
        return inside

    def bandwidth_bytes_per_s(self, layout: Layout, axes: tuple[str, ...]) -> float:
        """What one rank sends in a second in a collective over these axes."""
        inside = self.ranks_in_node(layout, axes)
        intra, inter = self.intra.bandwidth_bytes_per_s, self.inter.bandwidth_bytes_per_s
        whole = inside == group_size(layout, axes)
        return LINK_SHARE * (intra if whole else min(inside * inter, intra))

    def message_bytes_per_s(self, layout: Layout) -> float:
        """What one rank sends in a second to the next pipeline rank, the farthest one."""
        near = self.ranks_in_node(layout, ("pp",)) == layout.pp
        return LINK_SHARE * (self.intra if near else self.inter).bandwidth_bytes_per_s

    def exchange_s(self, layout: Layout, axes: tuple[str, ...], payload_bytes: float) -> float:
        """All-gather to, or reduce-scatter from, `payload_bytes` in rings: (N−1)/N of them move."""
        size = group_size(layout, axes)
        return (size - 1) / size * payload_bytes / self.bandwidth_bytes_per_s(layout, axes)


def group_size(layout: Layout, axes: tuple[str, ...]) -> int:
    """Ranks of a group over these axes."""
    size = 1
    for axis in axes:
        size *= getattr(layout, axis)
    return size
