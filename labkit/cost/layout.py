"""How a model is spread over ranks, as numbers: what planner, memory and step time are told.

    world_size = dp * pp * cp * ep * tp

The axes are those of labkit.comm.mesh. `ep` is an axis of its own: dense weights are replicated
along it, so the ranks that share a batch, and that ZeRO shards over, are dp * ep (and cp, whose
ranks hold the same weights): `replicas`.

What must divide: query heads, KV heads and hidden units over tp (fewer KV heads than ranks are
replicated), experts over ep, the sequence over cp, and over tp under sequence parallelism, and
micro-batches over pp where a rank has several chunks. Words and layers need not: words are padded
and the first stages take one layer more.
"""

from dataclasses import dataclass

from labkit.cost.architecture import Architecture

COUNTS = ("dp", "pp", "cp", "ep", "tp", "micro_batch_size", "num_micro_batches", "chunks")
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """One way to train on `world_size` ranks.

    Args:
        zero: stage of ZeRO, 0 to 3.
        sequence_parallel: norms and residuals hold 1/tp of the tokens.
        recompute: what runs again in backward: "none", "selective" or "full".
        micro_batch_size: sequences that one replica passes through at once.
        num_micro_batches: of one replica in a step, m.
        chunks: stages a pipeline rank holds, v; more than 1 is the interleaved schedule.
    """

    dp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    tp: int = 1
    zero: int = 0
    sequence_parallel: bool = False
    recompute: str = "none"
    micro_batch_size: int = 1
    num_micro_batches: int = 1
    chunks: int = 1

    def __post_init__(self) -> None:
        axes = self.dp, self.pp, self.cp, self.ep, self.tp
        if min(*axes, self.micro_batch_size, self.num_micro_batches, self.chunks) < 1:
            name = next(name for name in COUNTS if getattr(self, name) < 1)
            raise ValueError(f"{name} is {getattr(self, name)}, the least is 1")
        if self.recompute not in RECOMPUTE:
            raise ValueError(f"recompute {self.recompute!r} is not one of {RECOMPUTE}")
        if self.zero not in range(4):
            raise ValueError(f"ZeRO has stages (0, 1, 2, 3), got {self.zero}")

    @property
    def world_size(self) -> int:
        return self.dp * self.pp * self.cp * self.ep * self.tp

    @property
    def replicas(self) -> int:
        """Ranks that hold the same dense weights: gradients are summed, and states shared, here."""
        return self.dp * self.cp * self.ep

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts."""
        return self.dp * self.cp

    @property
    def batch_size(self) -> int:
        """Sequences in a step, over all ranks."""
        return self.dp * self.ep * self.micro_batch_size * self.num_micro_batches

    def why_not(self, architecture: Architecture, seq_len: int) -> str | None:
        """Why a model cannot be laid out so, with both numbers and the way out; None if it can.

        Args:
            architecture: of the whole model.
            seq_len: tokens of a sequence.
        """
        if latent := architecture.kv_latent_size:
            return (
                f"latent attention, {latent} numbers a token and layer, has no layout here: use a "
                "model of 0, which caches keys and values"
            )
        reasons = (
            *_over_tp(architecture, self.tp),
            _over_stages(architecture.num_layers, self),
            _over_ep(architecture.num_experts, self.ep),
            _of_sequence(seq_len, self),
        )
        return next((reason for reason in reasons if reason), None)

    def check(self, architecture: Architecture, seq_len: int) -> None:
        """Raise a ValueError if a model cannot be laid out so."""
        if reason := self.why_not(architecture, seq_len):
            raise ValueError(reason)


def layers_of_stages(num_layers: int, num_stages: int) -> list[int]:
    """Layers of each stage, the first ones one more where they do not divide.

    Raises:
        ValueError: if a stage would have no layer.
    """
    if num_layers < num_stages:
        raise ValueError(
            f"{num_layers} layers over {num_stages} stages: each stage needs at least one layer; "
            "use fewer ranks or chunks"
        )
    size, more = divmod(num_layers, num_stages)
    return [size + (stage < more) for stage in range(num_stages)]


def _over_tp(architecture: Architecture, tp: int) -> list[str | None]:
    parts = [("heads", architecture.num_heads), ("hidden units", architecture.intermediate_size)]
    if architecture.num_dense_layers:
        parts.append(("hidden units of dense layers", architecture.dense_intermediate_size))
    reasons: list[str | None] = [
        f"{count} {what} over tp={tp}: the number must divide; use a tp that divides {count}"
        for what, count in parts
        if count % tp
    ]
    kv_heads = architecture.num_kv_heads
    if kv_heads % tp and tp % kv_heads:
        reasons.append(
            f"{kv_heads} KV heads over tp={tp}: one number must divide the other; use a divisor or "
            f"a multiple of {kv_heads}"
        )
    return reasons


def _over_stages(num_layers: int, layout: Layout) -> str | None:
    stages, m = layout.pp * layout.chunks, layout.num_micro_batches
    if num_layers < stages:
        return (
            f"{num_layers} layers over {stages} stages (pp={layout.pp}, {layout.chunks} chunks): "
            "each stage needs at least one layer; use fewer ranks or chunks"
        )
    if layout.chunks > 1 and layout.pp == 1:
        return f"{layout.chunks} chunks on pp=1: there is no pipeline to fill; use 1 chunk"
    if layout.chunks > 1 and m % layout.pp:
        return (
            f"{m} micro-batches on pp={layout.pp} with {layout.chunks} chunks: it needs a multiple "
            f"of {layout.pp}; change them, or use 1 chunk"
        )
    return None


def _over_ep(num_experts: int, ep: int) -> str | None:
    if ep == 1:
        return None
    if num_experts == 0:
        return f"ep={ep} for a model of 0 experts: use ep=1 and a larger dp"
    if ep > num_experts:
        most = f"the most is ep={num_experts}"
        return f"{num_experts} experts over ep={ep}: a rank would have none; {most}"
    if num_experts % ep:
        use = f"use a divisor of {num_experts}"
        return f"{num_experts} experts over ep={ep}: the number must divide; {use}"
    return None


def _of_sequence(seq_len: int, layout: Layout) -> str | None:
    if seq_len < 1:
        return f"{seq_len} tokens a sequence, the least is 1"
    parts = layout.cp * (layout.tp if layout.sequence_parallel else 1)
    if seq_len % parts:
        axes = f"cp={layout.cp}" + (f" and tp={layout.tp}" if layout.sequence_parallel else "")
        return f"{seq_len} tokens over {axes}: pad the sequence to a multiple of {parts}"
    return None
