"""Axes, colours and units: what many pictures say."""

COMMON = {
    # axes
    "axis.payload_bytes": "payload of one rank, bytes",
    "axis.seconds": "virtual time, s",
    "axis.milliseconds": "virtual time, ms",
    "axis.microseconds": "virtual time, µs",
    "axis.forwards": "time, in forwards of one micro-batch on one rank",
    "axis.rank_megabytes": "MB sent and received by one rank",
    "axis.rank": "rank",
    "axis.ranks": "ranks",
    "axis.efficiency": "efficiency, virtual time",
    # what a colour means
    "kind.compute": "compute",
    "kind.communication": "communication",
    "kind.idle": "idle",
    # units
    "unit.bytes": "{n} B",
    "unit.kilobytes": "{n} kB",
    "unit.megabytes": "{n} MB",
    "unit.gigabytes": "{n} GB",
    "unit.seconds": "{n} s",
    "unit.milliseconds": "{n} ms",
    "unit.microseconds": "{n} µs",
    "frames.step": "step",  # the slider
}
