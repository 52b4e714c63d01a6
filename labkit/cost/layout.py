"""How a model is spread over ranks, as numbers: what planner, memory and step time are told.

    world_size = dp * pp * cp * ep * tp

The axes are those of labkit.comm.mesh. `ep` is an axis of its own: dense weights are replicated
along it, so the ranks that share a batch, and that ZeRO shards over, are dp * ep (and cp, whose
ranks hold the same weights): `replicas`.
"""

from dataclasses import dataclass

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True)
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
        for name in ("dp", "pp", "cp", "ep", "tp", "micro_batch_size", "num_micro_batches"):
            if getattr(self, name) < 1:
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
    def batch_size(self) -> int:
        """Sequences in a step, over all ranks."""
        return self.dp * self.ep * self.micro_batch_size * self.num_micro_batches
