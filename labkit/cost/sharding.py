"""What sharding costs in a step: exchanges, messages, bytes and seconds of one rank.

ZeRO over N ranks, S bytes of the parameters, padded so that each bucket or unit divides by N:

| stage | in each micro-batch                 | once a step            | bytes sent |
| ----- | ----------------------------------- | ---------------------- | ---------- |
| 0     |                                     | all-reduce             | 2(N−1)/N·S |
| 1     |                                     | reduce-scatter, gather | 2(N−1)/N·S |
| 2     | reduce-scatter                      | gather                 | 2(N−1)/N·S |
| 3     | gather twice, then reduce-scatter   |                        | 3(N−1)/N·S |

The bytes are those of one micro-batch. Stage 3 gathers for the forward and again for the backward.

An exchange of a unit is N−1 messages of one shard each. Tensor parallelism over t ranks, a model of
L layers, S = B·T·D numbers: 4L + 2 all-reduces, or as many reduce-scatters and all-gathers of S/t
and 2L + 1 gathers again. HSDP shards over the N ranks of a node and replicates over R nodes: ZeRO 3
inside, and then an all-reduce of each gradient shard with its copies on the other nodes.

Seconds are α a message and β a byte, one message after the other: nothing is hidden behind
arithmetic, and a rank sends one message at a time. Bytes are the ledger's convention; a real ring
of sends has just these.
Sources: ZeRO (arXiv 1910.02054), section 7; Megatron-LM (arXiv 1909.08053), section 3; Megatron-LM
3 (arXiv 2205.05198), section 4.2.2; PyTorch FSDP (arXiv 2304.11277), section 3.2.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from labkit.cost.activations import BlockShape
from labkit.cost.collectives import (
    all_gather_bytes_sent,
    all_reduce_bytes_sent,
    reduce_scatter_bytes_sent,
)
from labkit.cost.memory import STAGES


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What one rank sends in a step: exchanges with a group, messages of a ring, bytes."""

    num_exchanges: int = 0
    num_messages: int = 0
    bytes_sent: Fraction = Fraction(0)

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            num_exchanges=self.num_exchanges + other.num_exchanges,
            num_messages=self.num_messages + other.num_messages,
            bytes_sent=self.bytes_sent + other.bytes_sent,
        )

    def __mul__(self, times: int) -> "Traffic":
        return Traffic(
            num_exchanges=times * self.num_exchanges,
            num_messages=times * self.num_messages,
            bytes_sent=times * self.bytes_sent,
        )

    def time_s(self, alpha_s: float, beta_s_per_byte: float) -> float:
        """Seconds, if no message overlaps with another or with arithmetic."""
        return self.num_messages * alpha_s + float(self.bytes_sent) * beta_s_per_byte


def all_reduce_traffic(payload_bytes: int, group_size: int) -> Traffic:
    """A ring: 2(N−1) messages of S/N."""
    sent = all_reduce_bytes_sent(payload_bytes, group_size)
    return Traffic(num_exchanges=1, num_messages=2 * (group_size - 1), bytes_sent=sent)


def reduce_scatter_traffic(payload_bytes: int, group_size: int) -> Traffic:
    """N−1 messages of S/N."""
    sent = reduce_scatter_bytes_sent(payload_bytes, group_size)
    return Traffic(num_exchanges=1, num_messages=group_size - 1, bytes_sent=sent)


def all_gather_traffic(piece_bytes: int, group_size: int) -> Traffic:
    """N−1 messages of the piece that a rank brings."""
    sent = all_gather_bytes_sent(piece_bytes, group_size)
    return Traffic(num_exchanges=1, num_messages=group_size - 1, bytes_sent=sent)


def padded(count: int, group_size: int) -> int:
    """Elements of a bucket or unit of `count`, filled up to a multiple of the group."""
    return group_size * -(-count // group_size)


def zero_traffic(
    unit_numels: Sequence[int],
    *,
    stage: int,
    group_size: int,
    number_bytes: int,
    num_micro_batches: int = 1,
) -> Traffic:
    """One rank's traffic in a step of data parallelism with ZeRO.

    Args:
        unit_numels: parameters of each bucket (stages 0 to 2), or of each unit (3).
        stage: 0 is plain data parallelism.
        group_size: ranks that share the batch, N.
        number_bytes: of a parameter and of a gradient as they are sent.
        num_micro_batches: backwards in the step. Stages 2 and 3 send in each of them.

    Raises:
        ValueError: for a stage that does not exist.
    """
    if stage not in STAGES:
        raise ValueError(f"ZeRO has stages {STAGES}, got {stage}")
    total = Traffic()
    for count in unit_numels:
        if stage == 0:
            total += all_reduce_traffic(number_bytes * count, group_size)
            continue
        whole_bytes = number_bytes * padded(count, group_size)
        scatter = reduce_scatter_traffic(whole_bytes, group_size)
        gather = all_gather_traffic(whole_bytes // group_size, group_size)
        if stage == 3:
            total += (gather * 2 + scatter) * num_micro_batches
        else:
            total += gather + scatter * (num_micro_batches if stage == 2 else 1)
    return total


def hsdp_traffic(
    unit_numels: Sequence[int], *, ranks_per_node: int, num_nodes: int, number_bytes: int
) -> tuple[Traffic, Traffic]:
    """One rank's traffic in a step inside its node, and across nodes.

    Only gradients cross, and of each only the shard: as many bytes as S/N of data parallelism over
    R ranks. Sharding over all N·R ranks sends 3(NR−1)/NR·S through the slowest link instead.
    """
    inside = zero_traffic(
        unit_numels, stage=3, group_size=ranks_per_node, number_bytes=number_bytes
    )
    across = Traffic()
    for count in unit_numels:
        shard_bytes = number_bytes * padded(count, ranks_per_node) // ranks_per_node
        across += all_reduce_traffic(shard_bytes, num_nodes)
    return inside, across


def tensor_parallel_traffic(
    shape: BlockShape,
    *,
    num_layers: int,
    tp: int,
    number_bytes: int,
    sequence_parallel: bool = False,
) -> dict[str, Traffic]:
    """One rank's traffic in forward and backward of the split model, its loss included.

    Args:
        shape: of a layer of the whole model, and of the batch that all ranks work on.
        num_layers: L.
        tp: ranks that share each matrix, t.
        number_bytes: of an activation. The loss is sent in fp32, or in fp64 where this is 8.
        sequence_parallel: norms and residuals hold T/t tokens a rank.

    Returns:
        By kind: "all_reduce", "reduce_scatter", "all_gather"; "gather_again", what backward gathers
        a second time, by sends round a ring as the reduce-scatters are; and "kv", the all-reduces
        of K's and V's gradients among the ranks that hold the same head (none if there are enough).
    """
    stream_bytes = number_bytes * shape.tokens * shape.hidden_size
    borders = 4 * num_layers + 2  # two regions a layer, entered and left; embedding; head
    summed = _loss(shape, tp, number_bytes)
    if shape.qk_norm:
        summed += all_reduce_traffic(number_bytes * 2 * shape.head_dim, tp) * num_layers
    if not sequence_parallel:
        summed += all_reduce_traffic(stream_bytes, tp) * borders
        traffic = {"all_reduce": summed}
        traffic |= dict.fromkeys(("reduce_scatter", "all_gather", "gather_again"), Traffic())
    else:
        gains = number_bytes * shape.hidden_size * (2 * num_layers + 1)
        gather = all_gather_traffic(stream_bytes // tp, tp)
        traffic = {
            "all_reduce": summed + all_reduce_traffic(gains, tp),
            "reduce_scatter": reduce_scatter_traffic(stream_bytes, tp) * borders,
            "all_gather": gather * borders,
            "gather_again": gather * (borders // 2),  # at every entrance
        }
    return traffic | {"kv": _kv(shape, tp, number_bytes) * num_layers}


def _loss(shape: BlockShape, tp: int, number_bytes: int) -> Traffic:
    """The largest logit of each token; then the sum and the target's logit, together."""
    wide = max(4, number_bytes)
    return all_reduce_traffic(wide * shape.tokens, tp) + all_reduce_traffic(
        2 * wide * shape.tokens, tp
    )


def _kv(shape: BlockShape, tp: int, number_bytes: int) -> Traffic:
    """One all-reduce of a head's K and V weights over the ranks that hold it."""
    if shape.num_kv_heads >= tp:
        return Traffic()
    weights = 2 * shape.head_dim * shape.hidden_size
    return all_reduce_traffic(number_bytes * weights, tp // shape.num_kv_heads)
