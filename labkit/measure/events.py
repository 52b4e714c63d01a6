"""What a rank did, in order, as plain data: the vocabulary of logs, replay and timelines.

A log is a list of these events. `log.py` records one from a running rank; `fabric.py` replays the
logs of all ranks in virtual time; a test or a chapter may also write one by hand.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Compute:
    """Arithmetic on the rank's own device."""

    flops: float


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A message or collective was issued; it proceeds on its own until somebody waits for it.

    Args:
        id: counts the launches of one rank from 0.
        operation: all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, scatter, reduce,
            gather, barrier, send or recv.
        axis: the group's description, a mesh axis where the group belongs to a Mesh.
        ranks: global ranks of the group, in group order.
        bytes: payload S, this rank's input in bytes (a recv: what arrives).
        peer: global rank at the other end of a send or recv, the root of a rooted collective, or
            None.
    """

    id: int
    operation: str
    axis: str
    ranks: tuple[int, ...]
    bytes: int
    peer: int | None = None


@dataclass(frozen=True, kw_only=True)
class Wait:
    """The rank stopped until launch `id` was complete."""

    id: int


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A name for this point of the log, such as "backward"."""

    name: str


Event = Compute | Launch | Wait | Mark
