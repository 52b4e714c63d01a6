"""What one rank sends in a step, by axis, in any layout: exchanges, messages and bytes.

S = b·T·D numbers of a micro-batch's stream, T/cp of the tokens with context parallelism. A rank of
t tensor-parallel ranks, with L layers here and m micro-batches:

| axis | a micro-batch                                       | once a step                   |
| ---- | --------------------------------------------------- | ----------------------------- |
| tp   | 4L all-reduces of S, 6L if all is recomputed; 1 for | gradients of the norms' gains |
|      | embedding and 1 for head; 2 for the loss            | under sequence parallelism,   |
|      |                                                     | and of routers                |
| kv   | L all-reduces of K's and V's gradient if replicated |                               |
| pp   | S to the next rank, and as much to the one before   | gradient of a tied embedding  |
| dp   | ZeRO 2: a reduce-scatter; 3: and two gathers        | 0: all-reduce; 1: scatter and |
|      |                                                     | gather; 2: gather             |
| cp   | L(cp−1) messages of K and V; twice as many back     |                               |
| ep   | 4 all-to-alls a layer of experts, and 1 of counts   |                               |

Under sequence parallelism an all-reduce is a reduce-scatter and a gather, and a region that was
entered gathers again in backward, but for one of experts, which keeps what it gathered; a
pipeline's boundary is S/t. Scalars come on top: the number of scored tokens over dp, the loss over
dp and pp, and a norm to clip by.

All of it is what labkit.compose.parallelize sends; gradients of gains and routers go as the
optimizer sees them, in fp32, and those of K and V in the ring in fp32 at least. "dp" stands for all
replicas, which are cp and ep too. In ep tokens are spread evenly over experts; what a measured
routing sends is in experts.py. The loads that a balancing bias follows are not counted.

Sources: sharding.py's and pipeline.py's; Liu et al., "Ring Attention", arXiv 2310.01889, section 3;
Lepikhin et al., "GShard", arXiv 2006.16668, section 3.2.
"""

from labkit.cost.architecture import Architecture
from labkit.cost.context import ContextShape, context_traffic
from labkit.cost.experts import COUNT_BYTES
from labkit.cost.layout import Layout
from labkit.cost.layout_memory import BUCKET_BYTES
from labkit.cost.pipeline import loop_bytes_sent
from labkit.cost.rank_parameters import StagePart, padded_words, rank_tensors, stage_parts
from labkit.cost.replica_traffic import replica_traffic
from labkit.cost.sharding import (
    Traffic,
    all_gather_traffic,
    all_reduce_traffic,
    reduce_scatter_traffic,
)

AXES = ("dp", "pp", "cp", "ep", "tp", "kv")
COUNT, NORM, LOSS = 8, 8, 4  # bytes of a number of tokens, a squared norm, a loss


def layout_traffic(
    architecture: Architecture,
    layout: Layout,
    *,
    seq_len: int,
    number_bytes: int = 2,
    stage: int = 0,
    bucket_bytes: int = BUCKET_BYTES,
    clipped: bool = False,
) -> dict[str, Traffic]:
    """One rank's traffic in a step, by axis.

    Args:
        seq_len: tokens of a whole sequence.
        number_bytes: of a parameter, a gradient and an activation as they are sent: 2, 4 or 8.
        stage: rank in the pipeline.
        bucket_bytes: limit of a bucket of gradients, in stages 0 to 2 of ZeRO.
        clipped: gradients are clipped by the norm of all of them.

    Returns:
        By axis of AXES; "kv" is the ranks that hold the same head of K and V. Where replicas shard
        the gains of norms, tp's sum of their gradients is the mean over these ranks.

    Raises:
        ValueError: if the model cannot be laid out so, or the pipeline has no such rank.
    """
    layout.check(architecture, seq_len)
    job = _Job(architecture, layout, seq_len, number_bytes)
    total = dict.fromkeys(AXES, Traffic())
    parts = stage_parts(architecture.num_layers, layout, stage)
    for part, tensors in zip(parts, rank_tensors(architecture, layout, stage), strict=True):
        total["dp"] += replica_traffic(tensors, layout, number_bytes, bucket_bytes)
        for axis, traffic in job.of_part(part).items():
            total[axis] += traffic * layout.num_micro_batches
    total["pp"] += job.of_pipeline(stage)
    total["tp"] += job.of_partial_gradients(parts)
    return job.with_scalars(total, clipped)


class _Job:
    """The sizes that the traffic of a micro-batch depends on."""

    def __init__(
        self, architecture: Architecture, layout: Layout, seq_len: int, number_bytes: int
    ) -> None:
        self.model, self.layout, self.number_bytes = architecture, layout, number_bytes
        self.tokens = layout.micro_batch_size * seq_len // layout.cp
        self.stream_bytes = number_bytes * self.tokens * architecture.hidden_size

    def of_part(self, part: StagePart) -> dict[str, Traffic]:
        """One micro-batch through one chunk, forward and backward."""
        layers = len(part.layers)
        again = self.layout.recompute == "full"  # collectives of the forward run again
        forwards = 2 if again else 1
        num_dense = self.model.num_dense_layers if self.model.num_experts else layers
        moe = sum(layer >= num_dense for layer in part.layers) if self.model.num_experts else 0
        tp = self._region(forwards) * (2 * layers - moe) + self._of_experts(forwards) * moe
        if part.is_first:
            tp += self._leave()
        if part.is_last:
            tp += self._enter(forwards=1) + self._loss()
        if self.model.qk_norm:
            gains_bytes = self.number_bytes * 2 * self.model.head_dim
            tp += all_reduce_traffic(gains_bytes, self.layout.tp) * layers
        return {
            "tp": tp,
            "kv": self._replicated_kv() * layers,
            "cp": self._ring(forwards) * layers,
            "ep": (self._all_to_all() * (2 + 2 * forwards) + self._counts() * forwards) * moe,
        }

    def of_pipeline(self, stage: int) -> Traffic:
        """Boundaries, and the gradient of an embedding that is at both ends."""
        layout = self.layout
        boundary = self.stream_bytes // (layout.tp if layout.sequence_parallel else 1)
        sizes = (layout.pp, layout.num_micro_batches)
        sends = loop_bytes_sent(*sizes, 1, stage, layout.chunks)
        sent_bytes = loop_bytes_sent(*sizes, boundary, stage, layout.chunks)
        if self.model.tied and layout.pp > 1 and stage in (0, layout.pp - 1):
            words = padded_words(self.model.vocab_size, layout.tp) // layout.tp
            sends += 1
            sent_bytes += self.number_bytes * words * self.model.hidden_size
        return Traffic(
            num_exchanges=sends, num_messages=sends, bytes_sent=Traffic().bytes_sent + sent_bytes
        )

    def of_partial_gradients(self, parts: list[StagePart]) -> Traffic:
        """Once a step: gradients of gains under sequence parallelism, and of routers."""
        model, numbers = self.model, 0
        if self.layout.sequence_parallel:
            norms = sum(2 * len(part.layers) + part.is_last for part in parts)
            numbers += norms * model.hidden_size * (2 if model.biases else 1)
        if model.num_experts:
            routers = sum(
                layer >= model.num_dense_layers for part in parts for layer in part.layers
            )
            numbers += routers * model.num_experts * model.hidden_size
        if not numbers:
            return Traffic()
        wide = max(LOSS, self.number_bytes)  # of the fp32 copies that the optimizer sees
        whole = all_reduce_traffic(wide * numbers, self.layout.tp)
        shards = self.layout.replicas if self.layout.zero else 1
        return Traffic(
            num_exchanges=whole.num_exchanges,
            num_messages=whole.num_messages,
            bytes_sent=whole.bytes_sent / shards,
        )

    def _region(self, forwards: int) -> Traffic:
        """Attention, or MLP: entered and left."""
        return self._enter(forwards) + self._leave(forwards)

    def _of_experts(self, forwards: int) -> Traffic:
        """A mixture: under sequence parallelism it keeps the tokens that it has gathered."""
        tp = self.layout.tp
        if not self.layout.sequence_parallel:
            return self._region(forwards)
        gather = all_gather_traffic(self.stream_bytes // tp, tp)
        scatter = reduce_scatter_traffic(self.stream_bytes, tp)
        return gather * forwards + scatter + self._leave(forwards)

    def _enter(self, forwards: int) -> Traffic:
        tp = self.layout.tp
        if not self.layout.sequence_parallel:
            return all_reduce_traffic(self.stream_bytes, tp)  # in backward
        gather = all_gather_traffic(self.stream_bytes // tp, tp)
        return gather * (forwards + 1) + reduce_scatter_traffic(self.stream_bytes, tp)

    def _leave(self, forwards: int = 1) -> Traffic:
        tp = self.layout.tp
        if not self.layout.sequence_parallel:
            return all_reduce_traffic(self.stream_bytes, tp) * forwards
        gather = all_gather_traffic(self.stream_bytes // tp, tp)  # in backward
        return reduce_scatter_traffic(self.stream_bytes, tp) * forwards + gather

    def _loss(self) -> Traffic:
        """The largest logit of each token; then the sum and the target's logit, together."""
        wide = max(LOSS, self.number_bytes) * self.tokens
        return all_reduce_traffic(wide, self.layout.tp) + all_reduce_traffic(
            2 * wide, self.layout.tp
        )

    def _kv_heads(self) -> int:
        return max(1, self.model.num_kv_heads // self.layout.tp)

    def _replicated_kv(self) -> Traffic:
        model, tp = self.model, self.layout.tp
        if model.num_kv_heads >= tp:
            return Traffic()
        numbers = 2 * model.head_dim * (model.hidden_size + (model.attention_bias or model.biases))
        return all_reduce_traffic(self.number_bytes * numbers, tp // model.num_kv_heads)

    def _ring(self, forwards: int) -> Traffic:
        """K and V go round, in backward with their gradients behind them."""
        shape = ContextShape(
            batch_size=self.layout.micro_batch_size,
            num_heads=self.model.num_heads // self.layout.tp,
            num_kv_heads=self._kv_heads(),
            seq_len=self.tokens // self.layout.micro_batch_size * self.layout.cp,
            head_dim=self.model.head_dim,
            cp=self.layout.cp,
            number_bytes=self.number_bytes,
        )
        forward, backward = context_traffic(shape, "ring")
        return forward * forwards + backward

    def _all_to_all(self) -> Traffic:
        """Each token to top_k experts, or back: all but the share that stays."""
        sent_bytes = self.stream_bytes * self.model.top_k
        return reduce_scatter_traffic(sent_bytes, self.layout.ep)  # as many messages and bytes

    def _counts(self) -> Traffic:
        """How many rows each expert is going to get."""
        return reduce_scatter_traffic(COUNT_BYTES * self.model.num_experts, self.layout.ep)

    def with_scalars(self, total: dict[str, Traffic], clipped: bool) -> dict[str, Traffic]:
        """Number of tokens, loss and norm on top of the rest."""
        layout, loss_bytes = self.layout, max(LOSS, self.number_bytes)
        scalars: dict[str, list[int]] = {
            "dp": [COUNT, loss_bytes],
            "pp": [loss_bytes],
            "tp": [],
            "ep": [],
        }
        if clipped:
            mixed = ("ep",) if self.model.num_experts else ()  # ranks of ep have other experts
            for axis in (*(("dp",) if layout.zero else mixed), "pp", "tp"):
                scalars[axis].append(NORM)
        sizes = {"dp": layout.replicas, "pp": layout.pp, "tp": layout.tp, "ep": layout.ep}
        for axis, payloads in scalars.items():
            for payload_bytes in payloads:
                total[axis] += all_reduce_traffic(payload_bytes, sizes[axis])
        return total
