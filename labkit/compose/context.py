"""Attention over a sequence that lies on several ranks: the model's own layer, with another core.

    attention = with_context(block.self_attn, group, "ring")

Each rank has T/cp tokens of every row, an early and a late part (zigzag), and computes everything
but attention itself on these alone. Positions are those in the whole sequence.

Cost: that of the variant (labkit/parallel/context), in every layer and micro-batch.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.model.attention import Attention
from labkit.parallel.context import gather_attention, heads_attention, ring_attention

CORES: dict[str, Callable[..., torch.Tensor]] = {
    "ring": ring_attention,
    "gather": gather_attention,
    "heads": heads_attention,
}


class ContextCore:
    """Causal attention of this rank's tokens to those of its cp group."""

    def __init__(self, group: dist.ProcessGroup, context: str) -> None:
        self.group, self.core = group, CORES[context]

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [B, H, T/cp, d], k and v [B, K, T/cp, d] to [B, H, T/cp, d]."""
        return self.core(q, k, v, self.group)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ContextCore":
        return self  # it holds a group, and no state


def with_context(attention: Attention, group: dist.ProcessGroup, context: str) -> Attention:
    """The same layer, weights shared, that attends to the tokens of a whole group.

    One rank has all its tokens: it keeps torch's fused core, which needs no messages.
    """
    if dist.get_world_size(group) == 1:
        return attention
    changed = copy.copy(attention)
    changed.attend = ContextCore(group, context)
    return changed
