"""Parameters that one rank holds before ZeRO cuts them: sizes of its tensors, in order.

| tensor              | over tp ranks, ep ranks of experts                     |
| ------------------- | ------------------------------------------------------ |
| Q, O                | H/tp heads                                             |
| K, V                | max(1, K/tp) heads: replicated where there are fewer   |
| MLP, each expert    | F/tp hidden units; E/ep experts                        |
| words               | V'/tp, V' the words rounded up to a multiple of tp     |
| norms, router, O's and the MLP's last bias, positions | whole on every rank  |

The embedding is on the first pipeline stage, the last norm and the head on the last. A tied
embedding is on both: one weight where they lie on one rank, else two copies. Stage s lies on
pipeline rank s mod pp.

The order is that of labkit.model's parameters, which buckets are filled in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cost.architecture import Architecture
from labkit.cost.layout import Layout, layers_of_stages


@dataclass(frozen=True, kw_only=True)
class LayerTensors:
    """Numbers in each tensor of a layer: those all replicas share, and the rank's experts."""

    dense: tuple[int, ...]
    experts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankTensors:
    """Numbers in each tensor of one chunk of a rank; `before` and `after` are in no layer."""

    before: tuple[int, ...]
    layers: tuple[LayerTensors, ...]
    after: tuple[int, ...]

    @property
    def dense(self) -> list[int]:
        """All tensors but the experts', in order."""
        of_layers = [numel for layer in self.layers for numel in layer.dense]
        return [*self.before, *of_layers, *self.after]

    @property
    def experts(self) -> list[int]:
        return [numel for layer in self.layers for numel in layer.experts]

    @property
    def num_parameters(self) -> int:
        return sum(self.dense) + sum(self.experts)


@dataclass(frozen=True, kw_only=True)
class StagePart:
    """One chunk of a pipeline rank: its layers, and whether the model begins or ends here."""

    layers: range
    is_first: bool
    is_last: bool


def stage_parts(num_layers: int, layout: Layout, stage: int) -> list[StagePart]:
    """The chunks of one pipeline rank.

    Args:
        num_layers: of the whole model.
        layout: decides how many stages there are.
        stage: rank in the pipeline, from 0.

    Raises:
        ValueError: for a rank that the pipeline does not have, or stages without a layer.
    """
    if not 0 <= stage < layout.pp:
        raise ValueError(f"pipeline rank {stage} of pp={layout.pp}: ranks are 0 to {layout.pp - 1}")
    num_stages = layout.pp * layout.chunks
    counts = layers_of_stages(num_layers, num_stages)
    parts = []
    for number in range(stage, num_stages, layout.pp):
        start = sum(counts[:number])
        layers = range(start, start + counts[number])
        parts.append(
            StagePart(layers=layers, is_first=number == 0, is_last=number == num_stages - 1)
        )
    return parts


def rank_tensors(architecture: Architecture, layout: Layout, stage: int = 0) -> list[RankTensors]:
    """What one rank of pipeline rank `stage` holds before ZeRO, by chunk.

    Raises:
        ValueError: as `stage_parts` does.
    """
    parts = stage_parts(architecture.num_layers, layout, stage)
    return [_part_tensors(architecture, layout, part) for part in parts]


def layer_tensors(architecture: Architecture, layout: Layout, *, dense: bool) -> LayerTensors:
    """One layer's tensors on one rank.

    Args:
        dense: a layer without experts in a model that has them; nothing changes for others.
    """
    D, d, tp = architecture.hidden_size, architecture.head_dim, layout.tp
    heads, kv_heads = architecture.num_heads // tp * d, max(1, architecture.num_kv_heads // tp) * d
    biased = architecture.attention_bias or architecture.biases
    norm = (D, D) if architecture.biases else (D,)
    attention: list[int] = []
    for out, bias in ((heads, heads), (kv_heads, kv_heads), (kv_heads, kv_heads), (heads, D)):
        attention += [out * D, bias] if biased else [out * D]
    attention += [d, d] if architecture.qk_norm else []
    F, experts = architecture.intermediate_size, architecture.num_experts
    if not experts:
        return LayerTensors(dense=(*norm, *attention, *norm, *_mlp(architecture, F, tp)))
    if dense:
        mlp = _mlp(architecture, architecture.dense_intermediate_size, tp)
        return LayerTensors(dense=(*norm, *attention, *norm, *mlp))
    one = _mlp(architecture, F, tp)
    shared = one * architecture.num_shared_experts
    return LayerTensors(
        dense=(*norm, *attention, *norm, D * experts, *shared), experts=one * (experts // layout.ep)
    )


def padded_words(vocab_size: int, tp: int) -> int:
    """V': the words rounded up to a multiple of tp."""
    return -(-vocab_size // tp) * tp


def bucket_numels(numels: Sequence[int], bucket_bytes: int, number_bytes: int) -> list[int]:
    """Numbers in each bucket: tensors in backward's order, as many as fit, never cut."""
    buckets: list[int] = []
    for numel in reversed(numels):
        if buckets and number_bytes * (buckets[-1] + numel) <= bucket_bytes:
            buckets[-1] += numel
        else:
            buckets.append(numel)
    return buckets


def _part_tensors(architecture: Architecture, layout: Layout, part: StagePart) -> RankTensors:
    kinds = {kind: layer_tensors(architecture, layout, dense=kind) for kind in (True, False)}
    num_dense = architecture.num_dense_layers if architecture.num_experts else 0
    D = architecture.hidden_size
    words = padded_words(architecture.vocab_size, layout.tp) // layout.tp * D
    before = [words] if part.is_first or (part.is_last and architecture.tied) else []
    if part.is_first and architecture.num_positions:
        before.append(architecture.num_positions * D)
    after = [D] * (2 if architecture.biases else 1) if part.is_last else []
    if part.is_last and not architecture.tied:
        after.append(words)
    layers = tuple(kinds[layer < num_dense] for layer in part.layers)
    return RankTensors(before=tuple(before), layers=layers, after=tuple(after))


def _mlp(architecture: Architecture, intermediate_size: int, tp: int) -> tuple[int, ...]:
    D, F = architecture.hidden_size, intermediate_size // tp
    if not architecture.biases:
        return (D * F,) * (3 if architecture.gated else 2)
    into = (D * F, F) * (2 if architecture.gated else 1)
    return (*into, D * F, D)
