"""Virtual time: ranks go through their logs, transfers take turns on the links. No formula is here.

Every rank runs on until it has to wait. Then the one transfer that can start earliest gets its
links and an end, and the ranks go on. That order is safe: whatever a rank launches from now on
comes after the end of that transfer, so nothing can turn up that should have started before it.

Rules, and what a transfer costs, are in `labkit.measure.fabric`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from labkit.measure.events import Compute, Event, Launch, Mark, Wait
from labkit.measure.timeline import (
    COMMUNICATION,
    COMPUTE,
    MarkTime,
    RankTime,
    Span,
    Timeline,
    overlap_s,
)

MESSAGES = ("send", "recv")


@dataclass(kw_only=True)
class _Transfer:
    """A collective, or a message from the first member to the second."""

    members: tuple[int, ...]
    ports: list[tuple[int, str]]  # what it needs to have for itself
    launches: dict[int, Launch] = field(default_factory=dict)  # by rank
    ready_s: float = 0.0  # when the last member launched it
    end_s: float | None = None

    @property
    def missing(self) -> list[int]:
        return [rank for rank in self.members if rank not in self.launches]

    @property
    def payload(self) -> int:
        return max(launch.bytes for launch in self.launches.values())


@dataclass(kw_only=True)
class _Rank:
    """How far one rank is in its log, and what has become of its time."""

    number: int
    events: Sequence[Event]
    position: int = 0
    clock_s: float = 0.0
    compute_s: float = 0.0
    exposed_s: float = 0.0
    waiting_s: float = 0.0
    label: str = COMPUTE
    launched: dict[int, _Transfer] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    marks: list[MarkTime] = field(default_factory=list)

    def compute(self, seconds: float) -> None:
        self.span(COMPUTE, self.clock_s, self.clock_s + seconds, self.label)
        self.clock_s += seconds
        self.compute_s += seconds

    def wait(self, transfer: _Transfer) -> bool:
        """Go on after the transfer; False while its end is not known."""
        if transfer.end_s is None:
            return False
        if transfer.end_s > self.clock_s:
            arrived_s = max(transfer.ready_s, self.clock_s)
            self.waiting_s += arrived_s - self.clock_s
            self.exposed_s += transfer.end_s - arrived_s
            self.clock_s = transfer.end_s
        return True

    def mark(self, name: str) -> None:
        self.marks.append(MarkTime(rank=self.number, name=name, time_s=self.clock_s))
        self.label = name

    def span(self, lane: str, start: float, end: float, label: str) -> None:
        if end > start:
            span = Span(rank=self.number, lane=lane, start_s=start, end_s=end, label=label)
            self.spans.append(span)

    def time(self, step_s: float) -> RankTime:
        return RankTime(
            rank=self.number,
            compute_s=self.compute_s,
            exposed_communication_s=self.exposed_s,
            waiting_s=self.waiting_s,
            overlapped_communication_s=overlap_s(self.spans),
            finish_s=self.clock_s,
            idle_s=step_s - self.compute_s - self.exposed_s,
        )


class VirtualRun:
    """One replay: takes the cost of (rank, FLOPs) and of (a launch, its members, payload bytes)."""

    def __init__(
        self,
        logs: Sequence[Sequence[Event]],
        compute_time_s: Callable[[int, float], float],
        transfer_time_s: Callable[[Launch, tuple[int, ...], float], float],
    ) -> None:
        self.ranks = [_Rank(number=rank, events=log) for rank, log in enumerate(logs)]
        self.compute_time_s = compute_time_s
        self.transfer_time_s = transfer_time_s
        self.transfers: dict[Hashable, _Transfer] = {}  # in the order of their first launch
        self.calls: Counter[Hashable] = Counter()  # of a rank on a channel
        self.ready: list[_Transfer] = []
        self.free_s: defaultdict[tuple[int, str], float] = defaultdict(float)  # by port

    def run(self) -> Timeline:
        """Raises a ValueError where a real run would hang."""
        self._advance()
        while self.ready:
            transfer = min(self.ready, key=lambda each: (self._start_s(each), each.ready_s))
            self.ready.remove(transfer)
            self._transfer(transfer)
            self._advance()
        self._refuse_a_hang()
        ends = [transfer.end_s or 0.0 for transfer in self.transfers.values()]
        step_s = max([0.0, *ends, *(rank.clock_s for rank in self.ranks)])
        return Timeline(
            step_s=step_s,
            ranks=tuple(rank.time(step_s) for rank in self.ranks),
            spans=tuple(span for rank in self.ranks for span in rank.spans),
            marks=tuple(mark for rank in self.ranks for mark in rank.marks),
        )

    def _advance(self) -> None:
        for rank in self.ranks:
            while rank.position < len(rank.events) and self._step(rank, rank.events[rank.position]):
                rank.position += 1

    def _step(self, rank: _Rank, event: Event) -> bool:
        match event:
            case Compute():
                rank.compute(self.compute_time_s(rank.number, event.flops))
            case Launch():
                self._launch(rank, event)
            case Wait():
                if event.id not in rank.launched:
                    raise ValueError(f"rank {rank.number} waits for {event.id}, never launched")
                return rank.wait(rank.launched[event.id])
            case Mark():
                rank.mark(event.name)
        return True

    def _launch(self, rank: _Rank, launch: Launch) -> None:
        members = _members(rank.number, launch)
        if rank.number not in members or max(members) >= len(self.ranks):
            raise ValueError(
                f"rank {rank.number} launches {_told(launch)} among ranks {members}: "
                f"there are {len(self.ranks)} logs"
            )
        is_message = launch.operation in MESSAGES
        channel = (launch.axis, launch.ranks, members if is_message else None)
        turn = self.calls[rank.number, channel]
        self.calls[rank.number, channel] += 1
        if (channel, turn) not in self.transfers:
            ports = [(rank, port) for rank in members for port in ("out", "in")]
            ports = [(members[0], "out"), (members[1], "in")] if is_message else ports
            self.transfers[channel, turn] = _Transfer(members=members, ports=ports)
        transfer = self.transfers[channel, turn]
        other, first = next(iter(transfer.launches.items()), (rank.number, launch))
        same_call = launch.operation == first.operation and launch.peer == first.peer
        if not (launch.bytes == first.bytes if is_message else same_call):
            raise ValueError(
                f"call {turn} is {_told(launch)} for rank {rank.number}, "
                f"{_told(first)} for rank {other}"
            )
        transfer.launches[rank.number] = launch
        transfer.ready_s = max(transfer.ready_s, rank.clock_s)
        rank.launched[launch.id] = transfer
        if len(transfer.launches) == len(members):
            self.ready.append(transfer)

    def _start_s(self, transfer: _Transfer) -> float:
        return max(transfer.ready_s, *(self.free_s[port] for port in transfer.ports))

    def _transfer(self, transfer: _Transfer) -> None:
        start_s = self._start_s(transfer)
        launch = next(iter(transfer.launches.values()))
        end_s = start_s + self.transfer_time_s(launch, transfer.members, transfer.payload)
        transfer.end_s = end_s
        for port in transfer.ports:
            self.free_s[port] = end_s
        for number, mine in transfer.launches.items():
            label = f"{mine.operation} {mine.axis}"
            self.ranks[number].span(COMMUNICATION, start_s, end_s, label)

    def _refuse_a_hang(self) -> None:
        """Every rank's first launch that was never completed; a rank that waits, waits for one."""
        lines = []
        for rank in self.ranks:
            stopped = rank.events[rank.position :][:1]
            ids = [event.id for event in stopped if isinstance(event, Wait)] or rank.launched
            for transfer in [rank.launched[each] for each in ids]:
                if transfer.end_s is None:
                    launch = transfer.launches[rank.number]
                    verb = "waits for" if stopped else "never waits for"
                    others = ", ".join(f"rank {other}" for other in transfer.missing)
                    lines.append(
                        f"rank {rank.number} {verb} launch {launch.id}, {_told(launch)}, "
                        f"that {others} did not launch"
                    )
        if lines:
            raise ValueError("the logs hang:\n" + "\n".join(lines))


def _members(rank: int, launch: Launch) -> tuple[int, ...]:
    """The ranks that have to launch it: a message's source and target, or the whole group."""
    if launch.operation not in MESSAGES:
        return launch.ranks
    if launch.peer is None or launch.peer == rank:
        raise ValueError(f"rank {rank} cannot {launch.operation} with peer {launch.peer}")
    return (rank, launch.peer) if launch.operation == "send" else (launch.peer, rank)


def _told(launch: Launch) -> str:
    peer = "" if launch.peer is None else f" with rank {launch.peer}"
    return f"{launch.operation} of {launch.bytes} bytes{peer} on {launch.axis}"
