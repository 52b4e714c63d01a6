"""Words of the pictures in part I."""

PART1 = {
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
}
