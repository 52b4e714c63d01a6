"""Every word inside a picture, and the alt texts: one table, so that one file is translated.

A picture asks for a word by its key: word("axis.seconds"), word("ring.step", step=1, steps=6).
Numbers enter through the braces: {n} is a count, {text} a value with its unit.
"""

WORDS = {
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
    # algorithms
    "algorithm.ring": "ring",
    "algorithm.tree": "tree",
    "algorithm.halving_doubling": "halving and doubling",
    "algorithm.gather_broadcast": "gather, then broadcast",
    "algorithm.hierarchical": "hierarchical",
    "algorithm.switch": "in the switch",
    "algorithm.ddp_default": "default buckets",
    "algorithm.ddp_small": "buckets of 4 MiB",
    # ring, step by step
    "ring.rank": "rank {rank}",
    "ring.chunk": "chunk {chunk}",
    "ring.start": "Start: each rank holds only its own numbers",
    "ring.reduce_scatter": "Reduce-scatter, step {step} of {steps}",
    "ring.all_gather": "All-gather, step {step} of {steps}",
    "ring.legend_held": "row r filled: rank r's part is in the sum",
    "ring.legend_done": "sum complete",
    "ring.legend_moved": "on the wire in this step",
    "ring.alt_start": "Ring of {ranks} ranks before any message: rank r holds only its own part of "
    "each of the {ranks} chunks.",
    "ring.alt_step": "Ring of {ranks} ranks. {title}. Messages: {messages}. "
    "Complete sums: {complete}.",
    "ring.alt_message": "rank {sender} sends chunk {chunk} to rank {receiver}",
    "ring.alt_complete": "rank {rank} holds {chunks}",
    "ring.alt_none": "none",
    "ring.label": "Complete sums on each rank: {done} of {ranks}",
    # curves
    "curves.title": "Virtual time of an all-reduce",
    "curves.title_crossing": "Below {text} {small} is faster, above it {large}",
    "curves.replayed": "replayed",
    # bytes of each rank
    "bytes.title": "Equal totals; the busiest rank moves {most} against {least}",
    "bytes.title_plain": "Bytes through each rank",
    # timelines
    "timeline.title": "{name}: {text} of virtual time",
    "timeline.rank": "rank {rank}",
    # topologies
    "topology.ring": "Ring",
    "topology.tree": "Tree",
    "topology.hierarchical": "Hierarchical",
    "topology.switch": "In the switch",
    "topology.switch_symbol": "+",
    "topology.host": "host {host}",
    # data parallelism
    "data_parallel.forward": "Forward: split the batch, copy the weights, join the outputs",
    "data_parallel.backward": "Backward: average the gradients, update every copy alike",
    "data_parallel.batch": "batch",
    "data_parallel.copies": "weights",
    "data_parallel.outputs": "outputs",
    "data_parallel.joined": "joined",
    "data_parallel.gradients": "gradients",
    "data_parallel.aggregated": "all-reduce",
    "data_parallel.means": "mean",
    "data_parallel.update": "update",
    "data_parallel.weights": "w",
    "data_parallel.x": "x{rank}",
    "data_parallel.y": "y{rank}",
    "data_parallel.g": "g{rank}",
    "data_parallel.sum": "sum / N",
    "data_parallel.mean": "g",
    "data_parallel.updated": "w − ηg",
    # bytes on links
    "links.server": "Parameter server",
    "links.ring": "Ring all-reduce",
    "links.title": "{name}\nthrough the busiest rank: {text}",
    # efficiency against ranks
    "efficiency.after": "after backward",
    "efficiency.overlapped": "overlapped",
    "efficiency.int8": "overlapped, one byte each",
    "efficiency.parameter": "one call a parameter",
    "efficiency.default": "default buckets",
    "efficiency.small": "buckets of 4 MiB",
    "efficiency.label": "{name}: {n}",
    "efficiency.all": "80 % beyond {ranks:,} ranks",
    "efficiency.up_to": "80 % up to {ranks:,} ranks",
    "efficiency.never": "under 80 % from 2 ranks on",
    "efficiency.title": "Share of the step in which a rank computes",
    "efficiency.setting": "{model}, {tokens} tokens a rank, links of {link} a second",
    "efficiency.alt": "Efficiency against ranks for {setting}, from {first} to {last:,} ranks. "
    "{curves}.",
    # pipeline schedules
    "schedule.F": "forward",
    "schedule.B": "backward",
    "schedule.I": "gradient of the input",
    "schedule.W": "gradient of the weights",
    "schedule.BI": "backward, or of the input",
    "schedule.message": "message",
    "schedule.idle": "idle",
    "schedule.naive": "naive",
    "schedule.gpipe": "GPipe",
    "schedule.one_f_one_b": "1F1B",
    "schedule.interleaved": "interleaved 1F1B",
    "schedule.zero_bubble": "ZB-H1",
    "schedule.zero_bubble_v": "ZB-V",
    "schedule.dual_pipe_v": "DualPipeV",
    "schedule.title": "{name}: {share} of the step idle, up to {stash} in flight",
    "schedule.told": "bubble {ideal} of ideal time, {step} of the step; {length} forwards long; "
    "in flight: {stash}",
    "schedule.alt": "Timeline of {name} on {ranks} ranks with {micro_batches} micro-batches; a "
    "backward takes {ratio} forwards, a message {message}. {told}.",
    "schedule.refused": "{name} with {ranks} ranks and {micro_batches} micro-batches is not legal.",
    "schedule.measured": "A real run, its log replayed",
    "schedule.simulated": "The simulator",
    "explorer.backward": "backward / forward",
    "explorer.message": "message / forward",
    "explorer.ranks": "ranks",
    "explorer.micro": "micro-batches",
    "explorer.schedule": "schedule",
    # units
    "unit.bytes": "{n} B",
    "unit.kilobytes": "{n} kB",
    "unit.megabytes": "{n} MB",
    "unit.gigabytes": "{n} GB",
    "unit.seconds": "{n} s",
    "unit.milliseconds": "{n} ms",
    "unit.microseconds": "{n} µs",
    # the slider
    "frames.step": "step",
}

_BYTES = (
    (1e9, "unit.gigabytes"),
    (1e6, "unit.megabytes"),
    (1e3, "unit.kilobytes"),
    (1, "unit.bytes"),
)
_SECONDS = ((1, "unit.seconds"), (1e-3, "unit.milliseconds"), (1e-6, "unit.microseconds"))


def word(key: str, **values: object) -> str:
    """The words under a key, with values in their braces."""
    return WORDS[key].format(**values)


def bytes_in_words(num_bytes: float) -> str:
    """Three significant digits and the largest unit that leaves at least 1: "1.05 MB"."""
    return _in_words(num_bytes, _BYTES)


def seconds_in_words(seconds: float) -> str:
    """Three significant digits and the largest unit that leaves at least 1: "12.5 ms"."""
    return _in_words(seconds, _SECONDS)


def _in_words(value: float, units: tuple[tuple[float, str], ...]) -> str:
    scale, key = next((unit for unit in units if abs(value) >= unit[0]), units[-1])
    return word(key, n=f"{value / scale:.3g}")
