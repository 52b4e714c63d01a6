"""What a simulated step tells, as plain text.

Bytes are exact for what runs; times are virtual, from a model of links and devices, and say so.
"""

from collections.abc import Sequence

from labkit.cost.architecture import Architecture
from labkit.cost.cluster import Cluster
from labkit.cost.utilization import mfu
from labkit.measure.ledger import CommLedger
from labkit.measure.timeline import Timeline
from labkit.measure.virtual import MESSAGES
from labkit.simulate.holding import CATEGORIES
from labkit.simulate.run import Job, RankRun

GB = 10**9
NOT_SEEN = (
    "Not seen: how fast single kernels are and what memory they use inside, an allocator's\n"
    "fragmentation, the framework's own memory, two groups on one link, stragglers, failures,\n"
    "reading of data. Attention counts as if no position were masked."
)


def report(job: Job, runs: Sequence[RankRun], timeline: Timeline, cluster: Cluster) -> str:
    """Memory and traffic of each stage's representative, then the step in virtual time."""
    plan = job.plan
    parts = [
        f"{plan.world_size} ranks: dp {plan.dp}, pp {plan.pp}, tp {plan.tp}, ZeRO {plan.zero}; "
        f"{job.batch_size} sequences of {job.seq_len} tokens a step; {job.precision}"
    ]
    for stage, run in enumerate(runs):
        parts.append(f"Stage {stage}, as rank {run.rank}: {run.flops / 1e12:,.1f} TFLOP")
        parts += [memory_table(run), traffic_table(run.ledger)]
    parts += [time_table(timeline), speed(job, timeline, cluster), NOT_SEEN]
    return "\n\n".join(parts)


def memory_table(run: RankRun) -> str:
    """Bytes by category at the end of the last backward, and at the fullest moment."""
    moments = run.held, run.peak
    rows: list[tuple[str, ...]] = [("GB held", "end of backward", f"peak, in {run.peak.phase}")]
    for category in CATEGORIES:
        sizes = [moment.by_category[category] for moment in moments]
        rows.append((category, *(f"{size / GB:,.3f}" for size in sizes)))
    rows.append(("all", *(f"{moment.total_bytes / GB:,.3f}" for moment in moments)))
    return _table(rows, left=1)


def traffic_table(ledger: CommLedger) -> str:
    """Exchanges, calls and bytes of each group and operation, by the ledger.

    Groups of one rank are left out: nothing is sent there.
    """
    rows: list[tuple[str, ...]] = [
        ("group", "operation", "ranks", "exchanges", "calls", "GB sent", "GB received")
    ]
    kinds = {(c.axis, c.operation): len(c.ranks) for c in ledger.ops if len(c.ranks) > 1}
    for (axis, operation), size in sorted(kinds.items()):
        calls = ledger.count(operation, axis)
        numbers = (
            f"{size:,}",
            f"{_exchanges(calls, operation, axis, size):,}",
            f"{calls:,}",
            f"{ledger.bytes_sent(operation, axis) / GB:,.3f}",
            f"{ledger.bytes_received(operation, axis) / GB:,.3f}",
        )
        rows.append((axis, operation, *numbers))
    return _table(rows, left=2) if kinds else "Nothing is sent: every group has one rank."


def num_exchanges(ledger: CommLedger, axis: str) -> int:
    """A collective, a message along pp, or N−1 messages to, or round, the other ranks of a group.

    labkit's reduce-scatters and all-gathers of shards are such messages. What is received counts
    with what is sent.
    """
    kinds = {c.operation: len(c.ranks) for c in ledger.ops if c.axis == axis}
    kinds.pop("recv", None)
    return sum(
        _exchanges(ledger.count(operation, axis), operation, axis, size)
        for operation, size in kinds.items()
    )


def _exchanges(calls: int, operation: str, axis: str, size: int) -> int:
    return calls // (size - 1) if operation in MESSAGES and axis != "pp" else calls


def time_table(timeline: Timeline) -> str:
    """Where the virtual time of each stage goes."""
    rows: list[tuple[str, ...]] = [
        ("virtual seconds", "compute", "communication", "waiting", "hidden behind compute")
    ]
    for stage, rank in enumerate(timeline.ranks):
        times = (
            rank.compute_s,
            rank.exposed_communication_s,
            rank.idle_s,
            rank.overlapped_communication_s,
        )
        rows.append((f"stage {stage}", *(f"{each:.4f}" for each in times)))
    return _table(rows, left=1)


def speed(job: Job, timeline: Timeline, cluster: Cluster) -> str:
    """Step time, throughput and utilization, all in virtual time."""
    num_tokens = job.batch_size * job.seq_len
    utilization = mfu(
        Architecture.of(job.config),
        num_tokens=num_tokens,
        seq_len=job.seq_len,
        step_time_s=timeline.step_s,
        num_devices=job.plan.world_size,
        peak_flops_per_s=cluster.device.flops_per_s(number_format(job)),
    )
    return (
        f"Virtual step on {cluster.device.name}, {cluster.devices_per_node} a node, "
        f"{cluster.intra.name} and {cluster.inter.name}: {timeline.step_s:.4f} s, "
        f"{num_tokens / timeline.step_s:,.0f} tokens/s, MFU {utilization:.1%}"
    )


def number_format(job: Job) -> str:
    """Of the matrix products."""
    return {"mixed": "bf16", "fp32": "fp32"}[job.precision]


def why_it_does_not_fit(runs: Sequence[RankRun], cluster: Cluster) -> str | None:
    """By how much the fullest rank passes its device, and what is largest; None if it fits."""
    fullest = max(runs, key=lambda run: run.peak.total_bytes)
    peak, room = fullest.peak, cluster.device.memory_bytes
    if peak.total_bytes <= room:
        return None
    largest = max(CATEGORIES, key=lambda category: peak.by_category[category])
    return (
        f"rank {fullest.rank} needs {peak.total_bytes / GB:,.1f} GB, {cluster.device.name} has "
        f"{room / GB:,.1f} GB: {(peak.total_bytes - room) / GB:,.1f} GB too much. Largest is "
        f"{largest} with {peak.by_category[largest] / GB:,.1f} GB"
    )


def _table(rows: Sequence[tuple[str, ...]], *, left: int) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            text.ljust(width) if place < left else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
