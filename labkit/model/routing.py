"""Capacity: how many copies an expert takes, and which are dropped.

    capacity   C = ⌈c · k T / E⌉                         c: capacity factor
    kept       the first C copies for each expert: all first choices in the order of the tokens,
               then all second ones, and so on
    weights    of kept copies as they were, of dropped ones 0: the layer adds nothing for them, and
               a token that lost all its copies keeps the residual stream only

`labkit.model.moe` drops nothing. `limit` is for a comparison: its result goes into the `mix` of
MoE or ExpertParallelMoE, which still send and compute the dropped copies. With experts on several
ranks T is the number of the rank's own tokens, so C places are those for the copies of one rank.

Sources: GShard (arXiv 2006.16668), algorithm 1, for the order, and that weights are normalised
before the drop; Switch Transformer (arXiv 2101.03961), equation 3, for the factor.

Shapes: T tokens, E experts, k choices.
"""

from fractions import Fraction
from math import ceil, isfinite
from typing import NamedTuple

import torch

from labkit.model.moe import Routing


class Limited(NamedTuple):
    """A routing whose dropped copies weigh nothing."""

    routing: Routing
    kept: torch.Tensor  # [T, k], bool
    num_dropped: int


def capacity(num_tokens: int, num_experts: int, top_k: int, factor: float) -> int:
    """Places of one expert; the factor is taken as it is written: 1.1 · 10 is 11.

    Raises:
        ValueError: if top_k does not fit the experts, the tokens are under 0, or the factor is not
            finite and above 0.
    """
    if not 1 <= top_k <= num_experts:
        raise ValueError(f"top_k {top_k} of {num_experts} experts: choose 1 to {num_experts}")
    if num_tokens < 0:
        raise ValueError(f"num_tokens is {num_tokens}; it must be at least 0")
    if not (isfinite(factor) and factor > 0):
        raise ValueError(f"capacity factor is {factor}; it must be finite and above 0")
    return ceil(Fraction(str(factor)) * top_k * num_tokens / num_experts)


def kept_copies(indices: torch.Tensor, num_experts: int, places: int) -> torch.Tensor:
    """Which copies of indices [T, k] are among the first `places` for their expert: bool [T, k].

    Cost: one stable sort of k T numbers.
    """
    chosen = indices.T.flatten()  # [k T], first choices first
    counts = chosen.bincount(minlength=num_experts)  # [E]
    first = (counts.cumsum(0) - counts).repeat_interleave(counts)  # where each one's expert begins
    place = torch.empty_like(chosen)
    place[chosen.argsort(stable=True)] = torch.arange(len(chosen), device=chosen.device) - first
    return (place < places).view(indices.T.shape).T


def limit(routing: Routing, factor: float) -> Limited:
    """The same choice with weight 0 for copies beyond the capacity of their expert.

    Raises:
        ValueError: if the factor is not finite and above 0.
    """
    (num_tokens, top_k), num_experts = routing.indices.shape, routing.scores.shape[1]
    places = capacity(num_tokens, num_experts, top_k, factor)
    kept = kept_copies(routing.indices, num_experts, places)
    limited = routing._replace(weights=routing.weights.where(kept, 0))
    return Limited(routing=limited, kept=kept, num_dropped=int((~kept).sum()))
