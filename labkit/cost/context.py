"""What context parallelism costs: messages, work, memory of one layer's attention on one rank.

With t = T/cp tokens a rank and numbers of w bytes: S = 2 w B K t d bytes of keys and values of K
heads, Q = w B H t d bytes of queries.

| variant | forward                          | backward                                  |
| ------- | -------------------------------- | ----------------------------------------- |
| ring    | cp−1 messages, (cp−1) S          | as many for K and V, as many for their    |
|         |                                  | gradients, in fp32 at least               |
| gather  | an all-gather, (cp−1) S          | a reduce-scatter, (cp−1) S                |
| heads   | two all-to-alls, (cp−1)/cp of    | the same                                  |
|         | 2 Q + S'                         |                                           |

S' counts KV heads as often as they are sent: cp/K times where K < cp. With as many KV heads as
heads, the all-to-alls send 2/cp of the ring's bytes forward and 1/cp backward; the fewer KV heads,
the better for the ring and the gather.

Work is counted in pairs of half-shard chunks, c = T/(2 cp) tokens, 4 c² d FLOP a head and pair
forward and 10 c² d backward. A pair that the mask hides costs nothing, one that it halves is paid
whole.

Units: `*_bytes` bytes, `*_flops` FLOP, of one rank and one layer.

Sources: ring attention (arXiv 2310.01889), section 3; Llama 3 (arXiv 2407.21783), section 3.3.2;
DeepSpeed Ulysses (arXiv 2309.14509), section 3.2.
"""

from dataclasses import dataclass
from fractions import Fraction

from labkit.cost.collectives import all_to_all_bytes_sent
from labkit.cost.sharding import Traffic, all_gather_traffic, reduce_scatter_traffic

VARIANTS = ("ring", "gather", "heads")


@dataclass(frozen=True, kw_only=True)
class ContextShape:
    """Attention of a layer over the whole sequence, and the ranks that share it."""

    batch_size: int
    num_heads: int
    num_kv_heads: int
    seq_len: int
    head_dim: int
    cp: int
    number_bytes: int

    @property
    def tokens(self) -> int:
        """Of one rank."""
        return self.seq_len // self.cp

    @property
    def sent_kv_heads(self) -> int:
        """KV heads as the heads variant sends them, each as often as it is needed."""
        return max(self.num_kv_heads, self.cp)

    def shard_bytes(self, num_heads: int) -> int:
        """Of so many heads of one rank's tokens."""
        return self.number_bytes * self.batch_size * num_heads * self.tokens * self.head_dim


def context_traffic(shape: ContextShape, variant: str) -> tuple[Traffic, Traffic]:
    """One rank's traffic in forward and in backward.

    Raises:
        ValueError: for a variant that does not exist.
    """
    _check(variant)
    cp, kv_bytes = shape.cp, 2 * shape.shard_bytes(shape.num_kv_heads)
    if variant == "gather":
        return all_gather_traffic(kv_bytes, cp), reduce_scatter_traffic(cp * kv_bytes, cp)
    if variant == "heads":
        inward = _all_to_all(shape, shape.num_heads + 2 * shape.sent_kv_heads)
        both = inward + _all_to_all(shape, shape.num_heads)
        return both, both
    hops = _hops(kv_bytes, cp)
    sums_bytes = kv_bytes // shape.number_bytes * max(4, shape.number_bytes)
    return hops, hops + _hops(sums_bytes, cp)


def chunk_pairs(cp: int, layout: str, *, causal: bool = True) -> list[int]:
    """Pairs of half-shard chunks that each rank works on, in the ring and the gather.

    Raises:
        ValueError: for a layout that does not exist.
    """
    if layout not in ("contiguous", "zigzag"):
        raise ValueError(f"layout is contiguous or zigzag, got {layout!r}")
    if not causal:
        return [4 * cp] * cp
    if layout == "zigzag":
        return [2 * cp + 1] * cp
    return [4 * (rank + 1) for rank in range(cp)]


def slowest_share(cp: int, layout: str, *, causal: bool = True) -> Fraction:
    """Part of all the work that the busiest rank does: 1/cp at best, 2/(cp+1) if contiguous."""
    pairs = chunk_pairs(cp, layout, causal=causal)
    return Fraction(max(pairs), sum(pairs))


def context_flops(
    shape: ContextShape, variant: str, layout: str, *, causal: bool = True
) -> list[tuple[int, int]]:
    """(forward, backward) of each rank.

    With the heads variant every rank does an equal share of all pairs, for its own heads.
    """
    _check(variant)
    pairs = [Fraction(n) for n in chunk_pairs(shape.cp, layout, causal=causal)]
    if variant == "heads":
        pairs = [sum(pairs, Fraction(0)) / shape.cp] * shape.cp
    half = Fraction(shape.tokens, 2)
    unit = half * half * shape.batch_size * shape.num_heads * shape.head_dim
    return [(int(4 * unit * n), int(10 * unit * n)) for n in pairs]


def saved_bytes(shape: ContextShape, variant: str) -> int:
    """Kept for backward: q, k, v, out in the numbers' own width, and lse in fp32 at least.

    All in proportion to 1/cp, but for the gather's K and V, which are those of all tokens.
    """
    _check(variant)
    kv_heads = shape.sent_kv_heads if variant == "heads" else shape.num_kv_heads
    kv_bytes = 2 * shape.shard_bytes(kv_heads) * (shape.cp if variant == "gather" else 1)
    lse_bytes = max(4, shape.number_bytes) * shape.batch_size * shape.num_heads * shape.tokens
    return 2 * shape.shard_bytes(shape.num_heads) + kv_bytes + lse_bytes


def _check(variant: str) -> None:
    if variant not in VARIANTS:
        raise ValueError(f"variant is one of {VARIANTS}, got {variant!r}")


def _hops(message_bytes: int, cp: int) -> Traffic:
    """Once round the ring, less the way home."""
    sent = Fraction((cp - 1) * message_bytes)
    return Traffic(num_exchanges=cp - 1, num_messages=cp - 1, bytes_sent=sent)


def _all_to_all(shape: ContextShape, num_heads: int) -> Traffic:
    payload = shape.shard_bytes(num_heads)
    sent = all_to_all_bytes_sent(payload, payload // shape.cp)
    return Traffic(num_exchanges=1, num_messages=shape.cp - 1, bytes_sent=sent)
