"""What a mixture of experts costs: bytes of dispatch and combine, weights, imbalance.

    dispatch   copies whose expert is elsewhere · D w                     of one rank, forward
    combine    copies of others that arrived here · D w                   of one rank, forward
    backward   combine's gradients go the way of dispatch, dispatch's that of combine: once more
    counts     (ep−1) E/ep · 8                                            forward only
    even       (ep−1)/ep · k T D w in each direction, where routing is even

    weights    E · 3 D F + E D in all, k · 3 D F + E D active for a token

Units: `*_bytes` bytes of one rank and one layer; D width, F an expert's hidden width, w bytes a
number, T tokens of a rank.

Sources: GShard (arXiv 2006.16668), section 3; Mixtral (arXiv 2401.04088), section 2.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

COUNT_BYTES = 8  # an int64

Counts = Sequence[Sequence[int]]  # [ep][E]: copies that a rank has for an expert


@dataclass(frozen=True, kw_only=True)
class ExpertShape:
    """One layer, and the ranks that share it.

    Raises:
        ValueError: if the experts do not divide over the ranks, or top_k is out of range.
    """

    hidden_size: int
    intermediate_size: int
    num_experts: int
    top_k: int
    ep: int
    number_bytes: int

    def __post_init__(self):
        if self.num_experts % self.ep:
            raise ValueError(f"{self.num_experts} experts over ep={self.ep}: they must divide")
        if not 1 <= self.top_k <= self.num_experts:
            raise ValueError(f"top_k {self.top_k} of {self.num_experts} experts")

    @property
    def experts_per_rank(self) -> int:
        return self.num_experts // self.ep

    @property
    def row_bytes(self) -> int:
        """Of one token's copy."""
        return self.hidden_size * self.number_bytes


def dispatch_bytes(shape: ExpertShape, counts: Counts, rank: int) -> int:
    """Sent by the rank: its copies for experts of others."""
    loads = rank_loads(shape, counts)
    return (sum(loads[rank]) - loads[rank][rank]) * shape.row_bytes


def combine_bytes(shape: ExpertShape, counts: Counts, rank: int) -> int:
    """Sent by the rank: its experts' answers to copies of others."""
    loads = rank_loads(shape, counts)
    return sum(row[rank] for i, row in enumerate(loads) if i != rank) * shape.row_bytes


def counts_bytes(shape: ExpertShape) -> int:
    """Sent by each rank before dispatch, so that all know how many rows will come."""
    return (shape.ep - 1) * shape.experts_per_rank * COUNT_BYTES


def step_bytes(shape: ExpertShape, counts: Counts, rank: int) -> tuple[int, int]:
    """(forward, backward) sent by the rank."""
    rows = dispatch_bytes(shape, counts, rank) + combine_bytes(shape, counts, rank)
    return rows + counts_bytes(shape), rows


def balanced_bytes(shape: ExpertShape, num_tokens: int) -> Fraction:
    """Sent in one direction by each rank of num_tokens tokens, where routing is even."""
    elsewhere = Fraction(shape.ep - 1, shape.ep)
    return elsewhere * shape.top_k * num_tokens * shape.row_bytes


def layer_parameters(shape: ExpertShape) -> tuple[int, int]:
    """(total, active for one token) of the whole layer, the router in both."""
    router = shape.num_experts * shape.hidden_size
    expert = 3 * shape.hidden_size * shape.intermediate_size
    return shape.num_experts * expert + router, shape.top_k * expert + router


def rank_parameters(shape: ExpertShape) -> int:
    """Held by one rank: its experts and the whole router."""
    expert = 3 * shape.hidden_size * shape.intermediate_size
    return shape.experts_per_rank * expert + shape.num_experts * shape.hidden_size


def rank_loads(shape: ExpertShape, counts: Counts) -> list[list[int]]:
    """[ep][ep]: copies that go from a rank to a rank.

    Raises:
        ValueError: if counts are not ep rows of num_experts.
    """
    if len(counts) != shape.ep or any(len(row) != shape.num_experts for row in counts):
        found = f"{len(counts)} rows of {sorted({len(row) for row in counts})}"
        raise ValueError(f"counts have {found} experts, not {shape.ep} of {shape.num_experts}")
    share = shape.experts_per_rank
    return [[sum(row[i : i + share]) for i in range(0, len(row), share)] for row in counts]


def imbalance(loads: Sequence[int]) -> Fraction:
    """The largest load over the mean: 1 is even, len(loads) is all on one; 1 if there is none.

    Of experts, or of ranks: a step waits for the rank with the largest.
    """
    total = sum(loads)
    return Fraction(max(loads) * len(loads), total) if total else Fraction(1)
