"""Context parallelism: one sequence over several ranks, and three ways to attend to all of it."""

from labkit.parallel.context.blocks import Attended, merge
from labkit.parallel.context.gather import gather_attention
from labkit.parallel.context.heads import heads_attention
from labkit.parallel.context.placement import (
    LAYOUTS,
    Layout,
    chunks_of,
    positions,
    shard_sequence,
    unshard_sequence,
)
from labkit.parallel.context.ring import ring_attention

__all__ = [
    "LAYOUTS",
    "Attended",
    "Layout",
    "chunks_of",
    "gather_attention",
    "heads_attention",
    "merge",
    "positions",
    "ring_attention",
    "shard_sequence",
    "unshard_sequence",
]
