"""What a replay gives back: spans to draw, marks, and where each rank's virtual time went.

Up to the end of its log a rank is in exactly one of three states, so

    finish_s = compute_s + exposed_communication_s + waiting_s

and `idle_s`, the time in which a rank neither computes nor stands behind a transfer, is the waiting
plus what is left of the step after its log has ended. Nothing here was measured: the times come
from a model, and every table says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass

COMPUTE = "compute"
COMMUNICATION = "communication"


@dataclass(frozen=True, kw_only=True)
class Span:
    """A bar of a figure: a rank computes, or one of its messages is under way."""

    rank: int
    lane: str  # COMPUTE or COMMUNICATION
    start_s: float
    end_s: float
    label: str


@dataclass(frozen=True, kw_only=True)
class MarkTime:
    """The moment at which a rank passed a mark of its log."""

    rank: int
    name: str
    time_s: float


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """Where one rank's share of the step went.

    Args:
        compute_s: arithmetic.
        exposed_communication_s: stopped while its transfer ran, or queued for a busy link.
        waiting_s: stopped because a peer had not launched its part yet.
        overlapped_communication_s: communication that ran behind arithmetic, hence cost nothing.
        finish_s: when its log ended.
        idle_s: the step less compute_s and exposed_communication_s.
    """

    rank: int
    compute_s: float
    exposed_communication_s: float
    waiting_s: float
    overlapped_communication_s: float
    finish_s: float
    idle_s: float


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """One step in virtual time.

    Args:
        step_s: from 0 to the end of the last event or transfer.
        ranks: one entry a rank, in rank order.
        spans: by rank; within a lane of a rank in the order of their start.
        marks: by rank, in the order of its log.
    """

    step_s: float
    ranks: tuple[RankTime, ...]
    spans: tuple[Span, ...]
    marks: tuple[MarkTime, ...]

    @property
    def bubble(self) -> float:
        """Share of the step, over all ranks, in which a rank does not compute."""
        total_s = self.step_s * len(self.ranks)
        return 1 - sum(rank.compute_s for rank in self.ranks) / total_s if total_s else 0.0

    def table(self) -> str:
        """Plain text, one line a rank."""
        head = f"virtual time, step {self.step_s:.6g} s"
        columns = ("rank", "compute s", "exposed s", "waiting s", "overlapped s", "idle s")
        lines = [head, " ".join(f"{column:>12}" for column in columns)]
        for rank in self.ranks:
            times = (
                rank.compute_s,
                rank.exposed_communication_s,
                rank.waiting_s,
                rank.overlapped_communication_s,
                rank.idle_s,
            )
            lines.append(" ".join([f"{rank.rank:>12}", *(f"{time:>12.6g}" for time in times)]))
        return "\n".join(lines)


def overlap_s(spans: Iterable[Span]) -> float:
    """Seconds of one rank in which arithmetic and communication run at the same time."""
    edges = []
    for span in spans:
        edges += [(span.start_s, 1, span.lane), (span.end_s, -1, span.lane)]
    running = {COMPUTE: 0, COMMUNICATION: 0}
    total_s, before_s = 0.0, 0.0
    for time_s, change, lane in sorted(edges):
        if all(running.values()):
            total_s += time_s - before_s
        running[lane] += change
        before_s = time_s
    return total_s
