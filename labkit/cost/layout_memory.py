"""What one rank holds in any layout DP x PP x CP x EP x TP x ZeRO x recompute.

    states        of the rank's own tensors (rank_parameters.py), by ZeRO over the replicas
    activations   of one micro-batch (layout_activations.py), times those in flight

Dense tensors are shared over dp * cp * ep ranks, experts over dp * cp. Stages 1 and 2 cut buckets,
stage 3 units: each is padded to a multiple of the ranks. Rank r of 1F1B has min(m, pp - r)
micro-batches in flight; with chunks, the fullest moment of its order is found by going through it.

While a step runs more is alive besides: stage 3's root and two whole units, and gradients on their
way (`layout_working_memory`), and the loss's logits (layout_activations.loss_working_bytes).

Stages 2 and 3 of labkit sum a 16-bit model's gradients in fp32, and stage 3 keeps its weights in
fp32 in place of a copy. Beside a recipe of 2 + 2 + 12 bytes, stage 3 is the same in all, and stage
2 has 2 bytes more for each gradient of the shard.

`paper_layout_activation_bytes` is the count of another layer, GPT's, for published runs.

Sources: ZeRO (arXiv 1910.02054), sections 3 and 7.2; Narayanan et al., arXiv 2104.04473, section
2.2; Korthikanti et al., arXiv 2205.05198, section 4.3.
"""

from dataclasses import dataclass

from labkit.cost.activations import BF16, FP32, paper_block_activation_bytes
from labkit.cost.architecture import Architecture
from labkit.cost.held import zero3_held_bytes
from labkit.cost.layout import Layout
from labkit.cost.layout_activations import part_activation_bytes
from labkit.cost.memory import MIXED, Recipe, TrainingMemory
from labkit.cost.pipeline import in_flight_by_chunk
from labkit.cost.rank_parameters import RankTensors, bucket_numels, rank_tensors, stage_parts
from labkit.cost.sharding import padded

BUCKET_BYTES = 4 * 2**20  # labkit.compose.parallelize's


@dataclass(frozen=True, kw_only=True)
class WorkingMemory:
    """Bytes that a rank holds besides states and activations, at most, while a step runs."""

    gathered_bytes: int
    sent_gradient_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.gathered_bytes + self.sent_gradient_bytes


def layout_memory(
    architecture: Architecture,
    layout: Layout,
    *,
    seq_len: int,
    recipe: Recipe = MIXED,
    stage: int = 0,
    bucket_bytes: int = BUCKET_BYTES,
) -> TrainingMemory:
    """Bytes of one rank: states as between steps, activations at their fullest.

    Args:
        seq_len: tokens of a whole sequence.
        recipe: bytes a parameter; a number of the stream has as many as a parameter.
        stage: rank in the pipeline.
        bucket_bytes: limit of a bucket of ZeRO 1 and 2.

    Raises:
        ValueError: if the model cannot be laid out so, or the pipeline has no such rank.
    """
    layout.check(architecture, seq_len)
    own = whole = shard = 0  # numbers of a rank: plain, with padding, and those of its shard
    for part in rank_tensors(architecture, layout, stage):
        own += part.num_parameters
        for numels, ranks in cut_numels(part, layout, bucket_bytes, recipe.parameter_bytes):
            sizes = [padded(numel, ranks) for numel in numels]
            whole += sum(sizes)
            shard += sum(size // ranks for size in sizes)
    return TrainingMemory(
        parameter_bytes=recipe.parameter_bytes * (shard if layout.zero >= 3 else whole),
        gradient_bytes=recipe.gradient_bytes * (shard if layout.zero >= 2 else own),
        optimizer_bytes=recipe.optimizer_bytes * (shard if layout.zero >= 1 else whole),
        activation_bytes=_in_flight_bytes(architecture, layout, seq_len, recipe, stage),
    )


def layout_working_memory(
    architecture: Architecture,
    layout: Layout,
    *,
    recipe: Recipe = MIXED,
    stage: int = 0,
    bucket_bytes: int = BUCKET_BYTES,
) -> WorkingMemory:
    """What ZeRO has alive while a step runs, of one rank: at its fullest chunk.

    Stage 3 in backward holds the root and two units whole, and two gradients: of the unit that
    runs, and of the one before it on its way. Stage 2 holds two buckets' gradients whole, of which
    one is flat besides, on its way. Gathered weights and gradients have a parameter's bytes.
    """
    gathered, sent = [0], [0]
    for part in rank_tensors(architecture, layout, stage):
        for numels, ranks in cut_numels(part, layout, bucket_bytes, recipe.parameter_bytes):
            two = 2 * recipe.gradient_bytes * max(map(padded, numels, [ranks] * len(numels)))
            sent.append(two if layout.zero >= 2 else 0)
        if layout.zero == 3:
            gathered.append(_whole_units_bytes(part, layout, recipe))
    return WorkingMemory(gathered_bytes=max(gathered), sent_gradient_bytes=max(sent))


def cut_numels(
    part: RankTensors, layout: Layout, bucket_bytes: int, number_bytes: int
) -> list[tuple[list[int], int]]:
    """What is cut over ranks as one, and over how many: dense tensors, then experts if any.

    Without sharding nothing is cut, and each tensor stands for itself over one rank.
    """
    if layout.zero == 0:
        return [([*part.dense, *part.experts], 1)]
    if layout.zero == 3:
        root = sum(part.before) + sum(part.after)
        dense = [root] * bool(root) + [sum(layer.dense) for layer in part.layers]
        experts = [sum(layer.experts) for layer in part.layers if layer.experts]
    else:
        dense = bucket_numels(part.dense, bucket_bytes, number_bytes)
        experts = bucket_numels(part.experts, bucket_bytes, number_bytes)
    cut = [(dense, layout.replicas), (experts, layout.expert_replicas)]
    return [(numels, ranks) for numels, ranks in cut if numels]


def paper_layout_activation_bytes(
    architecture: Architecture, layout: Layout, *, seq_len: int, stage: int = 0
) -> float:
    """Activations of one rank by the paper's equations: GPT's layer in 16 bits, with dropout.

    Layers in flight by the schedule; the first rank keeps the embedding's dropout mask of each
    micro-batch; the last, of one micro-batch, the last norm's and the head's input and fp32 logits.

    Raises:
        ValueError: as `layout_memory` does.
    """
    layout.check(architecture, seq_len)
    tokens = layout.micro_batch_size * seq_len // layout.cp
    layer = paper_block_activation_bytes(
        batch_size=layout.micro_batch_size,
        seq_len=seq_len // layout.cp,
        hidden_size=architecture.hidden_size,
        num_heads=architecture.num_heads,
        tp=layout.tp,
        sequence_parallel=layout.sequence_parallel,
        recompute=layout.recompute,
    )
    stream = tokens * architecture.hidden_size
    stream_share = stream / layout.tp if layout.sequence_parallel else stream
    sizes = []
    for part in stage_parts(architecture.num_layers, layout, stage):
        size = len(part.layers) * layer + (stream_share if part.is_first else 0)
        if part.is_last:
            size += 2 * BF16 * stream_share + FP32 * tokens * architecture.vocab_size / layout.tp
        sizes.append(size)
    return max(_moments(layout, stage, sizes))


def _whole_units_bytes(part: RankTensors, layout: Layout, recipe: Recipe) -> int:
    """Root and two layers whole at most; a layer's experts are shared over fewer ranks."""
    root = sum(part.before) + sum(part.after)
    total = 0
    for layers, outside, ranks in (
        ([sum(layer.dense) for layer in part.layers], root, layout.replicas),
        ([sum(layer.experts) for layer in part.layers], 0, layout.expert_replicas),
    ):
        points = zero3_held_bytes(
            layers, outside, group_size=ranks, number_bytes=recipe.parameter_bytes
        )
        held = [point.held_bytes for point in points]
        total += max(held) - held[0]
    return total


def _in_flight_bytes(
    architecture: Architecture, layout: Layout, seq_len: int, recipe: Recipe, stage: int
) -> int:
    """The fullest moment of a step."""
    sizes = [
        part_activation_bytes(architecture, layout, part, seq_len=seq_len, recipe=recipe)
        for part in stage_parts(architecture.num_layers, layout, stage)
    ]
    return int(max(_moments(layout, stage, sizes)))


def _moments(layout: Layout, stage: int, sizes: list) -> list:
    """Bytes kept at each moment of a step, from those that a micro-batch keeps of each chunk."""
    moments = in_flight_by_chunk(layout.pp, layout.num_micro_batches, stage, layout.chunks)
    return [
        sum(count * size for count, size in zip(counts, sizes, strict=True)) for counts in moments
    ]
