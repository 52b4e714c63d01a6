"""Seconds of a layer, of one rank and one micro-batch: products, memory traffic, exchanges.

Counted by their bytes, not fitted (16-bit numbers; a mask is one byte; forward, backward):

| what                   | bytes a number           | numbers of one rank    |
| ---------------------- | ------------------------ | ---------------------- |
| two norms              | 4, 6                     | M·D, /tp under SP      |
| two residual sums      | 6, 6; with dropout 7, 11 | M·D, /tp under SP      |
| activation             | 4, 6; gated 6, 10        | M·F/tp                 |
| softmax, if not fused  | 4, 6; with dropout 9, 11 | b·H/tp·s/cp·s          |
| sum of the gradients   | 0, read and write        | weights                |

Backward does every product twice, for its input and for its weight. Fused attention makes the
scores once more in backward, 5 products for forward's 2, and skips half of the pairs.
Recomputation runs forward again: the attention core, or the layer with its exchanges.

Exchanges: tp 2 all-reduces of M·D forward and 2 backward, or as much in halves under SP; cp an
all-gather of K and V forward, the same and a reduce-scatter backward; ep 2 all-to-alls of top_k·M·D
forward and 2 backward. Nothing hides them.

Sources: Narayanan et al., arXiv 2104.04473, sections 2 to 4; Korthikanti et al., arXiv 2205.05198,
sections 4 and 5; Dao et al., arXiv 2205.14135, section 3.1, for what backward makes again.

Symbols: M tokens of a micro-batch on a rank, b its sequences, s tokens a sequence, D width, F
hidden width, H heads, K KV heads, d head width.
"""

from dataclasses import dataclass

from labkit.cost.architecture import Architecture
from labkit.cost.cluster import Cluster
from labkit.cost.efficiency import NUMBER_BYTES, Efficiency, bytes_s, flops_s, product_s
from labkit.cost.hardware import Device
from labkit.cost.layout import Layout
from labkit.cost.software import Software

NORM, RESIDUAL, RESIDUAL_DROPOUT = (4, 6), (6, 6), (7, 11)
ACTIVATION, GATED_ACTIVATION = (4, 6), (6, 10)
SOFTMAX, SOFTMAX_DROPOUT = (4, 6), (9, 11)

Product = tuple[float, float, float, int]  # so many of [M, K] x [K, N]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerTime:
    """Seconds forward, backward with what it runs again, and of exchanges both ways."""

    forward_s: float
    backward_s: float
    tp_s: float = 0.0
    cp_s: float = 0.0
    ep_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What one rank is asked to do with one micro-batch."""

    model: Architecture
    layout: Layout
    cluster: Cluster
    seq_len: int
    software: Software
    law: Efficiency

    @property
    def device(self) -> Device:
        return self.cluster.device

    @property
    def tokens(self) -> float:
        return self.layout.micro_batch_size * self.seq_len / self.layout.cp


def layer_time(work: Work) -> LayerTime:
    """One layer."""
    products = layer_products(work)
    products_s = sum(
        count * product_s(num_rows, inner, num_columns, work.device, work.law)
        for num_rows, inner, num_columns, count in products
    )
    core_s, traffic_s = core_time_s(work), _traffic_s(work, products)
    forward_s = products_s + core_s[0] + traffic_s[0]
    again_s = {"none": 0.0, "selective": core_s[0], "full": forward_s}[work.layout.recompute]
    passes = 3 if work.layout.recompute == "full" else 2
    return LayerTime(
        forward_s=forward_s,
        backward_s=2 * products_s + core_s[1] + traffic_s[1] + again_s,
        tp_s=passes * _tp_s(work),
        cp_s=(passes + 1) * _cp_s(work),
        ep_s=passes * _ep_s(work),
    )


def head_time(work: Work) -> LayerTime:
    """Logits and loss: a product, and scores in 32 bits that are written, read and corrected."""
    model, device = work.model, work.device
    words = model.vocab_size / work.layout.tp
    product = product_s(work.tokens, model.hidden_size, words, device, work.law)
    loss_s = bytes_s(8 * work.tokens * words, device)
    return LayerTime(forward_s=product + loss_s, backward_s=2 * product + loss_s)


def layer_products(work: Work) -> list[Product]:
    """The products of one rank; an expert's rows are its even share of the tokens."""
    model, tokens, tp = work.model, work.tokens, work.layout.tp
    D, d = model.hidden_size, model.head_dim
    heads, kv_heads = model.num_heads / tp * d, max(1, model.num_kv_heads / tp) * d
    attention = [(tokens, D, heads + 2 * kv_heads, 1), (tokens, heads, D, 1)]
    if not model.num_experts:
        return [*attention, *_mlp(model, tp, tokens, 1)]
    experts = model.num_experts // work.layout.ep
    rows = tokens * model.top_k / experts
    return [*attention, *_mlp(model, tp, rows, experts)]


def core_time_s(work: Work) -> tuple[float, float]:
    """Attention between its projections, forward and backward, without recomputation."""
    model, layout, device = work.model, work.layout, work.device
    rows, d = layout.micro_batch_size * model.num_heads / layout.tp, model.head_dim
    own, s = work.seq_len / layout.cp, work.seq_len
    if work.software.fused_attention:
        arithmetic_s = flops_s(4 * rows * own * s * d / 2, device, work.law)
        moved_s = bytes_s(NUMBER_BYTES * 4 * rows * own * d, device)
        return arithmetic_s + moved_s, 2.5 * arithmetic_s + 2 * moved_s
    scores, values = (own, d, s), (own, s, d)
    products_s = rows * sum(product_s(*each, device, work.law) for each in (scores, values))
    softmax = SOFTMAX_DROPOUT if work.software.dropout else SOFTMAX
    forward_s, backward_s = (bytes_s(each * rows * own * s, device) for each in softmax)
    return products_s + forward_s, 2 * products_s + backward_s


def _mlp(model: Architecture, tp: int, rows: float, count: int) -> list[Product]:
    D, F = model.hidden_size, model.intermediate_size / tp
    return [(rows, D, (2 if model.gated else 1) * F, count), (rows, F, D, count)]


def _traffic_s(work: Work, products: list[Product]) -> tuple[float, float]:
    """Norms, residual sums, activation, and the sum of gradients, forward and backward."""
    model, layout, device = work.model, work.layout, work.device
    stream = work.tokens * model.hidden_size / (layout.tp if layout.sequence_parallel else 1)
    hidden = work.tokens * max(1, model.top_k) * model.intermediate_size / layout.tp
    residual = RESIDUAL_DROPOUT if work.software.dropout else RESIDUAL
    activation = GATED_ACTIVATION if model.gated else ACTIVATION
    weights = sum(count * inner * columns for _, inner, columns, count in products)
    moved = [2 * (NORM[way] + residual[way]) * stream + activation[way] * hidden for way in (0, 1)]
    sums = 2 * work.software.gradient_bytes * weights
    return bytes_s(moved[0], device), bytes_s(moved[1] + sums, device)


def _tp_s(work: Work) -> float:
    """Two all-reduces of the stream, or an all-gather and a reduce-scatter for each."""
    if work.layout.tp == 1:
        return 0.0
    stream_bytes = NUMBER_BYTES * work.tokens * work.model.hidden_size
    return 4 * work.cluster.exchange_s(work.layout, ("tp",), stream_bytes)


def _cp_s(work: Work) -> float:
    """One all-gather of K and V."""
    model, layout = work.model, work.layout
    if layout.cp == 1:
        return 0.0
    width = 2 * max(1, model.num_kv_heads / layout.tp) * model.head_dim
    whole_bytes = NUMBER_BYTES * layout.micro_batch_size * work.seq_len * width
    return work.cluster.exchange_s(layout, ("cp",), whole_bytes)


def _ep_s(work: Work) -> float:
    """Tokens to their experts and back."""
    if work.layout.ep == 1:
        return 0.0
    sent_bytes = NUMBER_BYTES * work.tokens * work.model.top_k * work.model.hidden_size
    return 2 * work.cluster.exchange_s(work.layout, ("ep",), sent_bytes)
