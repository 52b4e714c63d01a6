"""One rank a stage stands for all ranks: what their logs take in virtual time.

Every rank of dp and tp does at the same time what its representative does. So

| in a representative's log                  | in the replay                                       |
| ------------------------------------------ | --------------------------------------------------- |
| message to or from another representative  | as it is: the two meet                              |
| collective of several representatives      | they meet; it takes what all its members take       |
| collective of one representative           | its own: starts when it is launched, takes the same |
| messages with ranks that nobody stands for | one exchange of them all, its own                   |

An exchange is a run of messages in which no peer comes twice: ZeRO's all-gathers and
reduce-scatters send to each rank of their group at once. A rank sends one thing and receives one at
a time, so an exchange takes the sum of its sends, or of its receives if that is more.

What it takes is `labkit.measure.fabric`'s, on the links between the global ranks. All peers are
taken to be on time: no straggler, and no link that two groups share.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from labkit.cost.cluster import LINK_SHARE, Cluster
from labkit.cost.collectives import message_time_s
from labkit.cost.efficiency import efficiency
from labkit.measure.events import Event, Launch, Wait
from labkit.measure.fabric import Fabric
from labkit.measure.timeline import Timeline
from labkit.measure.virtual import MESSAGES, VirtualRun
from labkit.simulate.run import RankRun


@dataclass(frozen=True, kw_only=True)
class Priced(Launch):
    """A launch that knows how long its transfer takes."""

    seconds: float


def replay_runs(runs: Sequence[RankRun], fabric: Fabric) -> Timeline:
    """A step of the whole world in virtual time; rank r of the timeline is stage r.

    Args:
        runs: of one representative a stage, in the order of the stages.
        fabric: of the world; its link is asked for global ranks.
    """
    ranks = tuple(run.rank for run in runs)
    logs = [
        _Adapter(place=place, ranks=ranks, fabric=fabric).adapt(run.events)
        for place, run in enumerate(runs)
    ]

    def compute_time_s(place: int, flops: float) -> float:
        return fabric.compute_time_s(ranks[place], flops)

    return VirtualRun(logs, compute_time_s, _seconds).run()


def fabric_of(cluster: Cluster, number_format: str) -> Fabric:
    """Devices and links of a cluster, at the share of their data sheets that programs attain.

    Args:
        number_format: of matrix products, "bf16" or "fp32".
    """
    device = cluster.device
    links = [
        (kind.latency_s or 0.0, 1 / (LINK_SHARE * kind.bandwidth_bytes_per_s))
        for kind in (cluster.intra, cluster.inter)
    ]
    return Fabric.of_nodes(
        cluster.devices_per_node,
        intra=links[0],
        inter=links[1],
        flops=efficiency(device).peak_share * device.flops_per_s(number_format),
    )


def _seconds(launch: Launch, members: tuple[int, ...], payload: float) -> float:
    assert isinstance(launch, Priced), "an adapted log has no other launches"
    return launch.seconds


@dataclass(kw_only=True)
class _Adapter:
    """Turns one representative's log into the log of a world that has only representatives."""

    place: int
    ranks: tuple[int, ...]  # of the representatives, in the world
    fabric: Fabric
    adapted: list[Event] = field(default_factory=list)
    # A launch of the log: what stands for it, until somebody has waited for that.
    stands_for: dict[int, int] = field(default_factory=dict)
    waited: set[int] = field(default_factory=set)
    exchange: dict[tuple[str, int | None], Launch] = field(default_factory=dict)
    prices: dict[Hashable, float] = field(default_factory=dict)

    def adapt(self, events: Sequence[Event]) -> list[Event]:
        for event in events:
            if isinstance(event, Launch) and self._is_of_exchange(event):
                self._add(event)
                continue
            self._end_exchange()
            if isinstance(event, Launch):
                self._launch(event)
            elif isinstance(event, Wait):
                self._wait(event)
            else:
                self.adapted.append(event)
        self._end_exchange()
        return self.adapted

    def _is_of_exchange(self, launch: Launch) -> bool:
        """A message whose other end nobody stands for."""
        return launch.operation in MESSAGES and launch.peer not in self.ranks

    def _add(self, message: Launch) -> None:
        """To the exchange that is being collected, or to a new one."""
        key = message.operation, message.peer
        first = next(iter(self.exchange.values()), message)
        if key in self.exchange or first.ranks != message.ranks:
            self._end_exchange()
        self.exchange[key] = message

    def _end_exchange(self) -> None:
        messages = list(self.exchange.values())
        if not messages:
            return
        self.exchange = {}
        first, seconds, sent = messages[0], {"send": 0.0, "recv": 0.0}, 0
        for each in messages:
            seconds[each.operation] += self._message_s(each)
            sent += each.bytes if each.operation == "send" else 0
            self.stands_for[each.id] = first.id
        self.adapted.append(
            Priced(
                id=first.id,
                operation="exchange",
                axis=first.axis,
                ranks=(self.place,),
                bytes=sent,
                seconds=max(seconds.values()),
            )
        )

    def _launch(self, launch: Launch) -> None:
        """A collective, or a message between representatives."""
        self.stands_for[launch.id] = launch.id
        is_message = launch.operation in MESSAGES
        members = [place for place, rank in enumerate(self.ranks) if rank in launch.ranks]
        self.adapted.append(
            Priced(
                id=launch.id,
                operation=launch.operation,
                axis=launch.axis,
                ranks=tuple(members),
                bytes=launch.bytes,
                peer=self._place_of(launch.peer),
                seconds=self._message_s(launch) if is_message else self._collective_s(launch),
            )
        )

    def _wait(self, wait: Wait) -> None:
        """Once for each that stands for others: after that it is there."""
        stands = self.stands_for[wait.id]
        if stands not in self.waited:
            self.waited.add(stands)
            self.adapted.append(Wait(id=stands))

    def _place_of(self, rank: int | None) -> int | None:
        """Of a root that nobody stands for there is none."""
        return self.ranks.index(rank) if rank in self.ranks else None

    def _message_s(self, message: Launch) -> float:
        me, peer = self.ranks[self.place], message.peer
        assert peer is not None, "the strategies send to ranks that they name"
        ends = (me, peer) if message.operation == "send" else (peer, me)
        link = self.fabric.link_between(*ends)
        return message_time_s(message.bytes, *link)

    def _collective_s(self, launch: Launch) -> float:
        key = launch.operation, launch.ranks, launch.bytes, launch.peer
        if key not in self.prices:
            price_s = self.fabric.transfer_time_s(launch, launch.ranks, launch.bytes)
            self.prices[key] = price_s
        return self.prices[key]
