"""Replays the logs of all ranks in virtual time, on links that cost α + S·β and ranks that compute.

The model, in five rules:

1. Arithmetic takes flops / rate, times the rank's slowdown, and shares the rank with nothing.
2. A launch costs nothing and does not stop the rank. A wait does, until the transfer is complete.
3. A collective is the k-th call of every member on one group, and can start once all have launched
   it. A message is the k-th send of a pair on a group and the k-th recv (rendezvous).
4. A rank sends one thing and receives one at a time (single port, full duplex). A message takes the
   sender's out and the receiver's in, a collective takes both of every member. Of all that could
   start, the earliest goes first; at equal times, what has been ready for longest.
5. A transfer takes what `labkit.cost.collectives` says, at the slowest of the links it uses.

The same logs give the same times, to the last bit. They are virtual: say so where they are shown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from labkit.cost.collectives import message_time_s
from labkit.measure.events import Event, Launch
from labkit.measure.timeline import Timeline
from labkit.measure.transfers import ALGORITHMS, Link, collective_time_s
from labkit.measure.virtual import VirtualRun


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Links and ranks, as numbers.

    Args:
        alpha: seconds a message.
        beta: seconds a byte on one link in one direction.
        flops: FLOP per second of one rank.
        slowdown: factor on the arithmetic of some ranks; 2.0 takes twice as long.
        link: gives (alpha, beta) between two ranks, where links differ.
        algorithm: of an all-reduce: "ring", "tree", or "cheaper" of the two, call by call.
    """

    alpha: float
    beta: float
    flops: float
    slowdown: Mapping[int, float] = field(default_factory=dict)
    link: Callable[[int, int], Link] | None = None
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.beta < 0 or self.flops <= 0:
            numbers = f"{self.alpha}, {self.beta} and {self.flops}"
            raise ValueError(f"needs alpha ≥ 0, beta ≥ 0 and flops > 0, got {numbers}")
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f'algorithm "{self.algorithm}" is not one of {ALGORITHMS}')

    @classmethod
    def of_nodes(
        cls,
        ranks_per_node: int,
        *,
        intra: Link,
        inter: Link,
        flops: float,
        slowdown: Mapping[int, float] | None = None,
        algorithm: str = "ring",
    ) -> "Fabric":
        """Consecutive ranks share a node: `intra` links inside it, `inter` links between nodes."""

        def link(source: int, target: int) -> Link:
            return intra if source // ranks_per_node == target // ranks_per_node else inter

        alpha, beta = inter
        return cls(
            alpha=alpha,
            beta=beta,
            flops=flops,
            slowdown=slowdown or {},
            link=link,
            algorithm=algorithm,
        )

    def link_between(self, source: int, target: int) -> Link:
        """(alpha, beta) of one link."""
        return self.link(source, target) if self.link else (self.alpha, self.beta)

    def compute_time_s(self, rank: int, flops: float) -> float:
        """Seconds that a rank takes for this much arithmetic."""
        return flops / self.flops * self.slowdown.get(rank, 1.0)

    def transfer_time_s(self, launch: Launch, members: tuple[int, ...], payload: float) -> float:
        """Seconds that a transfer takes once it has started."""
        if launch.operation in ("send", "recv"):
            return message_time_s(payload, *self.link_between(*members))
        return collective_time_s(
            launch.operation,
            members,
            payload,
            launch.peer,
            link=self.link_between,
            algorithm=self.algorithm,
        )


def replay(logs: Sequence[Sequence[Event]], fabric: Fabric) -> Timeline:
    """Run all ranks in virtual time.

    Args:
        logs: each rank's events, by global rank.
        fabric: what arithmetic and links cost.

    Raises:
        ValueError: if a rank would wait for ever, if a launch finds no partner, if partners differ
            in the operation or a message's bytes, or if a rank waits for what it never launched.
    """
    run = VirtualRun(logs, fabric.compute_time_s, fabric.transfer_time_s)
    return run.run()
