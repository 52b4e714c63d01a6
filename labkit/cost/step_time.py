"""Seconds of one training step of any layout, from sizes, a device and its links.

    step = m·t + (p·mean − t)/v + exchange of gradients and weights + optimizer

t is one micro-batch, forward and backward, on the slowest pipeline rank, which is often the last:
it has the logits. `mean` is the same over all p ranks, so the second term is the bubble, which v
chunks a rank cut by v. t holds the layers' products, memory traffic and exchanges (layer_time.py),
and the messages between stages where the program waits for them.

Data parallelism costs what sticks out of the work that it travels behind, max(0, E − W): weights
behind forward, gradients behind backward. ZeRO-3 gathers the weights for forward and for backward
and scatters the gradients, in every micro-batch and behind all of them; ZeRO-2 scatters gradients
so too, for it keeps none whole. The rest is exchanged once a step, behind one micro-batch. A
program that hides nothing waits for all of E.

The optimizer reads and writes OPTIMIZER_BYTES of memory a parameter of its own.

What is left out: latency of messages, launches of kernels, input, logging, stragglers, and tokens
that are not spread evenly over experts. All layers are taken to be alike.

Sources: Narayanan et al., arXiv 2104.04473, section 2.2 (bubble) and 4.1 (scatter and gather of
messages); Rajbhandari et al., arXiv 1910.02054, section 7 (ZeRO's exchanges).
"""

from dataclasses import dataclass, field

from labkit.cost.architecture import Architecture
from labkit.cost.cluster import Cluster, group_size
from labkit.cost.counting import training_flops
from labkit.cost.efficiency import NUMBER_BYTES, Efficiency, bytes_s, efficiency, peak_flops_per_s
from labkit.cost.layer_time import LayerTime, Work, head_time, layer_time
from labkit.cost.layout import Layout
from labkit.cost.software import TODAY, Software
from labkit.cost.utilization import flops_utilization

OPTIMIZER_BYTES = 36  # 16-bit gradient and weight; fp32 gradient, weight and moments, both ways
DENSE_AXES, EXPERT_AXES = ("dp", "cp", "ep"), ("dp", "cp")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Where a step's seconds go; exchanges count as far as nothing hides them.

    Args:
        compute_s: of the slowest pipeline rank, its memory traffic and recomputation included.
        work: what was priced.
    """

    compute_s: float
    bubble_s: float
    tp_s: float
    cp_s: float
    ep_s: float
    pp_s: float
    dp_s: float
    optimizer_s: float
    work: Work = field(repr=False)

    @property
    def exposed_s(self) -> float:
        """Exchanges that nothing hides, over all axes."""
        return self.tp_s + self.cp_s + self.ep_s + self.pp_s + self.dp_s

    @property
    def total_s(self) -> float:
        return self.compute_s + self.bubble_s + self.exposed_s + self.optimizer_s

    @property
    def mfu(self) -> float:
        """Of the device's 16-bit peak; attention counts the causal half where it is fused."""
        return self._utilization("none")

    @property
    def hfu(self) -> float:
        """The same with what runs again."""
        return self._utilization(self.work.layout.recompute)

    def _utilization(self, recompute: str) -> float:
        work, layout = self.work, self.work.layout
        tokens, causal = layout.batch_size * work.seq_len, work.software.fused_attention
        flops = training_flops(work.model, tokens, work.seq_len, causal, recompute)
        peak = peak_flops_per_s(work.device)
        return flops_utilization(flops, self.total_s, layout.world_size, peak)


def step_time(
    model: Architecture,
    layout: Layout,
    cluster: Cluster,
    seq_len: int,
    software: Software = TODAY,
    law: Efficiency | None = None,
) -> StepTime:
    """Seconds of one step of `layout.batch_size` sequences of `seq_len` tokens.

    Args:
        law: of the device's products; by default the fitted one.

    Raises:
        ValueError: if the model cannot be laid out so.
    """
    layout.check(model, seq_len)
    work = Work(
        model=model,
        layout=layout,
        cluster=cluster,
        seq_len=seq_len,
        software=software,
        law=law or efficiency(cluster.device),
    )
    layer, head, message_s = layer_time(work), head_time(work), _messages_s(work)
    m, layers, has_head = layout.num_micro_batches, *_slowest(model, layout, layer, head)
    once_s = layers * _seconds(layer) + has_head * _seconds(head) + message_s
    forward_s = layers * layer.forward_s + has_head * head.forward_s
    mean_s = (model.num_layers * _seconds(layer) + _seconds(head)) / layout.pp + message_s
    return StepTime(
        compute_s=m * (layers * _compute_s(layer) + has_head * _compute_s(head)),
        bubble_s=(layout.pp * mean_s - once_s) / layout.chunks,
        tp_s=m * layers * layer.tp_s,
        cp_s=m * layers * layer.cp_s,
        ep_s=m * layers * layer.ep_s,
        pp_s=m * message_s,
        dp_s=_data_s(work, forward_s, once_s - forward_s),
        optimizer_s=_optimizer_s(work),
        work=work,
    )


def weights_of_rank(model: Architecture, layout: Layout) -> tuple[float, float]:
    """Numbers in products of the fullest pipeline rank: dense ones, and the rank's experts'."""
    D, layers = model.hidden_size, -(-model.num_layers // layout.pp)
    heads = 2 * model.num_heads / layout.tp + 2 * max(1, model.num_kv_heads / layout.tp)
    mlp = (3 if model.gated else 2) * D * model.intermediate_size / layout.tp
    words = D * model.vocab_size / layout.tp
    tables = words if layout.pp > 1 or model.tied else 2 * words
    dense = layers * D * heads * model.head_dim + tables
    if not model.num_experts:
        return dense + layers * mlp, 0.0
    return dense, layers * mlp * model.num_experts / layout.ep


def _slowest(
    model: Architecture, layout: Layout, layer: LayerTime, head: LayerTime
) -> tuple[int, bool]:
    """Layers of the slowest pipeline rank, and whether it is the last one, with the logits."""
    most, least = -(-model.num_layers // layout.pp), model.num_layers // layout.pp
    is_last = least * _seconds(layer) + _seconds(head) >= most * _seconds(layer)
    return (least, True) if is_last else (most, False)


def _compute_s(part: LayerTime) -> float:
    return part.forward_s + part.backward_s


def _seconds(part: LayerTime) -> float:
    return _compute_s(part) + part.tp_s + part.cp_s + part.ep_s


def _messages_s(work: Work) -> float:
    """One micro-batch's messages, there and back, for every chunk: cut by tp, then gathered."""
    layout = work.layout
    if layout.pp == 1 or work.software.overlap_pipeline:
        return 0.0
    stream_bytes = NUMBER_BYTES * work.tokens * work.model.hidden_size
    message_s = stream_bytes / layout.tp / work.cluster.message_bytes_per_s(layout)
    if layout.tp > 1 and not layout.sequence_parallel:
        message_s += work.cluster.exchange_s(layout, ("tp",), stream_bytes)
    return 2 * layout.chunks * message_s


def _data_s(work: Work, forward_s: float, backward_s: float) -> float:
    """Exposed seconds of weights and gradients; the arguments are one micro-batch's."""
    software, zero, m = work.software, work.layout.zero, work.layout.num_micro_batches
    gather_s = _exchange_s(work, NUMBER_BYTES) if zero else 0.0
    again_s = m * gather_s if zero == 3 else 0.0  # for backward
    before_s, behind_forward_s = (again_s, m * forward_s) if zero == 3 else (gather_s, forward_s)
    times = m if zero >= 2 else 1
    gradients_s, backward_s = times * _gradients_s(work), times * backward_s
    behind_s = again_s * software.overlap_weights + gradients_s * software.overlap_gradients
    waited_s = again_s + gradients_s - behind_s
    if software.overlap_weights:
        before_s = max(0.0, before_s - behind_forward_s)
    return before_s + max(0.0, behind_s - backward_s) + waited_s


def _gradients_s(work: Work) -> float:
    """A reduce-scatter, or an all-reduce, which is as long twice."""
    halves = 1 if work.layout.zero else 2
    return halves * _exchange_s(work, work.software.gradient_bytes)


def _exchange_s(work: Work, number_bytes: int) -> float:
    """One all-gather or reduce-scatter of all that a rank holds."""
    layout, total_s = work.layout, 0.0
    attained = work.software.gather_bytes_per_s if layout.zero == 3 else None
    axes = DENSE_AXES, EXPERT_AXES
    for numbers, over in zip(weights_of_rank(work.model, layout), axes, strict=True):
        size, payload_bytes = group_size(layout, over), number_bytes * numbers
        if attained is None:
            total_s += work.cluster.exchange_s(layout, over, payload_bytes)
        else:
            total_s += (size - 1) / size * payload_bytes / attained
    return total_s


def _optimizer_s(work: Work) -> float:
    dense, experts = weights_of_rank(work.model, work.layout)
    if work.layout.zero:
        dense, experts = dense / work.layout.replicas, experts / work.layout.expert_replicas
    return bytes_s(OPTIMIZER_BYTES * (dense + experts), work.device)
