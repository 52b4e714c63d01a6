"""What one micro-batch keeps for backward on one pipeline stage, in any layout.

The course's layer, term by term as in activations.py, with t = tp. T tokens of a sequence become
T/cp with context parallelism. What tp divides, and sequence parallelism besides:

| kept                              | tp      | and sequence parallelism             |
| --------------------------------- | ------- | ------------------------------------ |
| norms: input, result, 1/rms       | whole   | 1/t                                  |
| what enters Q, K, V, gate and up  | whole   | 1/t, once, as the stream holds it    |
| heads, attention, hidden units    | 1/t     | 1/t; K and V at least one head       |
| logits' probabilities, in fp32    | V'/t    | V'/t                                 |

A number of the stream has the bytes of a parameter; under autocast products are in bf16 and keep
copies of their inputs and weights. Context parallelism sends K and V round again in backward, so a
rank keeps its own only. Of experts a token keeps top_k hidden widths, and what goes into and comes
out of each; tokens are taken to be spread evenly, and an MLP that is not gated keeps GeLU's input
and result. These last three are formulas, compared with no run yet.

Sources: Korthikanti et al., arXiv 2205.05198, section 4; Liu et al., "Ring Attention", arXiv
2310.01889, section 3.

Symbols: D width, F hidden width, H heads, K KV heads, d head width, V words.
"""

from dataclasses import dataclass

from labkit.cost.activations import BF16, FP32
from labkit.cost.architecture import Architecture
from labkit.cost.layout import Layout
from labkit.cost.memory import AUTOCAST, Recipe
from labkit.cost.rank_parameters import StagePart, padded_words

INT64, BOOL = 8, 1  # bytes a number


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Sizes of one micro-batch on one rank.

    Args:
        tokens: that attention and MLP work on.
        stream_tokens: that norms and residuals hold.
        stream_bytes: a number of the stream.
        product_bytes: a number that enters or leaves a matrix product.
        positions: of the rotary table.
    """

    tokens: int
    stream_tokens: int
    stream_bytes: int
    product_bytes: int
    positions: int

    @classmethod
    def of(cls, layout: Layout, seq_len: int, recipe: Recipe) -> "MicroBatch":
        positions = seq_len // layout.cp
        tokens = layout.micro_batch_size * positions
        autocast = recipe.name == AUTOCAST.name
        return cls(
            tokens=tokens,
            stream_tokens=tokens // layout.tp if layout.sequence_parallel else tokens,
            stream_bytes=recipe.parameter_bytes,
            product_bytes=BF16 if autocast else recipe.parameter_bytes,
            positions=positions,
        )

    @property
    def autocast(self) -> bool:
        return self.product_bytes != self.stream_bytes


def part_activation_bytes(
    architecture: Architecture, layout: Layout, part: StagePart, *, seq_len: int, recipe: Recipe
) -> int:
    """Bytes that one micro-batch keeps of one chunk of a pipeline rank.

    Args:
        seq_len: tokens of a whole sequence.
        recipe: its parameter's bytes are the stream's; AUTOCAST has bf16 products.
    """
    batch = MicroBatch.of(layout, seq_len, recipe)
    num_dense = (
        architecture.num_dense_layers if architecture.num_experts else architecture.num_layers
    )
    dense = sum(layer < num_dense for layer in part.layers)
    total = batch.stream_bytes * batch.positions * architecture.head_dim  # cosines and sines
    total += dense * layer_activation_bytes(architecture, layout, batch, experts=False)
    if len(part.layers) > dense:
        each = layer_activation_bytes(architecture, layout, batch, experts=True)
        total += (len(part.layers) - dense) * each
    if part.is_first:  # places of the words, and which are this rank's
        total += batch.tokens * (INT64 + BOOL)
    return total + (_head(architecture, layout, batch) if part.is_last else 0)


def layer_activation_bytes(
    architecture: Architecture, layout: Layout, batch: MicroBatch, *, experts: bool
) -> int:
    """Bytes of one layer, the rotary table left out.

    Args:
        experts: the layer has experts in place of one MLP.
    """
    stream = batch.stream_bytes * batch.stream_tokens * architecture.hidden_size
    if layout.recompute == "full":
        return stream
    norm = _norm(architecture.hidden_size, batch)
    if layout.recompute == "selective":
        norm = stream
    mlp = _experts if experts else _mlp
    return 2 * norm + _attention(architecture, layout, batch) + mlp(architecture, layout, batch)


def _norm(hidden_size: int, batch: MicroBatch) -> int:
    """Input and 1/rms in fp32, and the result before the gain."""
    return batch.stream_tokens * (FP32 * (hidden_size + 1) + batch.stream_bytes * hidden_size)


def _entrance(architecture: Architecture, layout: Layout, batch: MicroBatch, products: int) -> int:
    """What enters several products, and the copies that autocast makes of it."""
    if layout.sequence_parallel:  # gathered again in backward
        return batch.stream_bytes * batch.stream_tokens * architecture.hidden_size
    copies = products if batch.autocast else 1
    return copies * batch.product_bytes * batch.tokens * architecture.hidden_size


def _attention(architecture: Architecture, layout: Layout, batch: MicroBatch) -> int:
    D, d, number = architecture.hidden_size, architecture.head_dim, batch.product_bytes
    heads = architecture.num_heads // layout.tp
    kv_heads = max(1, architecture.num_kv_heads // layout.tp)
    total = _entrance(architecture, layout, batch, 3)
    total += number * batch.tokens * d * (heads + 2 * kv_heads)
    if architecture.qk_norm:
        total += batch.tokens * (heads + kv_heads) * (FP32 * (d + 1) + number * d)
    results = 2 if heads > 1 else 1  # the kernel's, and O's with the heads side by side
    total += batch.tokens * heads * (FP32 + results * number * d)  # and a log-sum-exp a row
    if architecture.num_kv_heads < layout.tp and (layout.sequence_parallel or not batch.autocast):
        biases = 2 * d if architecture.attention_bias else 0
        total += batch.stream_bytes * (2 * d * D + biases)  # K's and V's weights, in one message
    into, out = (heads + 2 * kv_heads) * d * D, heads * d * D
    return total + _weight_copies(layout, batch, into=into, out=out)


def _mlp(architecture: Architecture, layout: Layout, batch: MicroBatch) -> int:
    F = architecture.intermediate_size
    if architecture.num_experts:
        F = architecture.dense_intermediate_size
    F //= layout.tp
    D, into = architecture.hidden_size, 2 if architecture.gated else 1
    hidden = (4 if architecture.gated else 2) * batch.product_bytes * batch.tokens * F
    weights = _weight_copies(layout, batch, into=into * D * F, out=D * F)
    return _entrance(architecture, layout, batch, into) + hidden + weights


def _experts(architecture: Architecture, layout: Layout, batch: MicroBatch) -> int:
    """Router, and the MLPs of top_k experts a token; those that are shared see every token."""
    D, F = architecture.hidden_size, architecture.intermediate_size // layout.tp
    into = 2 if architecture.gated else 1
    visits = architecture.top_k + architecture.num_shared_experts
    hidden = (into + 2 if architecture.gated else 2) * F
    dispatched = 2 * D * architecture.top_k  # into an expert, and out of it
    numbers = visits * hidden + dispatched + architecture.num_experts
    held = architecture.num_experts // layout.ep + architecture.num_shared_experts
    weights = _weight_copies(layout, batch, into=held * into * D * F, out=held * D * F)
    entrance = _entrance(architecture, layout, batch, 1)
    return entrance + batch.product_bytes * batch.tokens * numbers + weights


def _weight_copies(layout: Layout, batch: MicroBatch, *, into: int, out: int) -> int:
    """Autocast's copies in bf16; a region that gathers its tokens makes its own again."""
    if not batch.autocast:
        return 0
    return BF16 * (out if layout.sequence_parallel else into + out)


def _head(architecture: Architecture, layout: Layout, batch: MicroBatch) -> int:
    """Last norm, projection, and the loss: probabilities in fp32 of the rank's own words."""
    words = padded_words(architecture.vocab_size, layout.tp) // layout.tp
    weights = _weight_copies(layout, batch, into=words * architecture.hidden_size, out=0)
    loss = batch.tokens * (FP32 * words + INT64 + 2 * BOOL)  # target's place and two masks
    return (
        _norm(architecture.hidden_size, batch)
        + _entrance(architecture, layout, batch, 1)
        + weights
        + loss
    )


def loss_working_bytes(
    architecture: Architecture, layout: Layout, *, seq_len: int, recipe: Recipe
) -> int:
    """Bytes of logits that live while the loss of a micro-batch is computed, besides what is kept.

    The logits as they leave the head, a copy in fp32 if they are narrower, the same less the
    largest, and their exponentials.
    """
    batch = MicroBatch.of(layout, seq_len, recipe)
    words = padded_words(architecture.vocab_size, layout.tp) // layout.tp
    wide = FP32 if batch.product_bytes != FP32 else 0
    return batch.tokens * words * (batch.product_bytes + wide + 2 * FP32)
