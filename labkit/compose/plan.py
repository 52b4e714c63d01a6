"""How a model is trained on many ranks: the axes, and what is done along each.

    world_size = dp * pp * cp * ep * tp

| field              | what                                                                  |
| ------------------ | --------------------------------------------------------------------- |
| dp                 | replicas that share the batch                                         |
| pp, schedule, m, v | stages on pp ranks, v chunks each; m micro-batches of a replica       |
| cp, context        | ranks that share the tokens of a row; how they attend to all of them  |
| ep                 | ranks that share the experts; they share the batch too                |
| tp                 | ranks that share each matrix                                          |
| sequence_parallel  | between the matrices a rank of tp holds 1/tp of the tokens            |
| zero               | what replicas shard: 0 nothing, 1 optimizer, 2 and gradients, 3 and weights |
| recompute          | "full": layers keep their input only; "selective": their norms do     |

Not everything goes with everything. What does not, and why:

* ZB-H1 leaves the gradients of the weights for later, and keeps what they are made of.
  Recomputation drops just that. ZeRO 2 and 3 would send the gradients of half a backward.
* Zigzag gives a rank of cp an early and a late part of a row, so T must be a multiple of 2 cp. Each
  part is cut once more over tp under sequence parallelism.
* A tied embedding has a copy on the first stage and one on the last. Their gradients are added up
  where they are whole, so ZeRO goes up to 1 there.

Cost: none; a plan is data, and its checks look at nothing but numbers.
"""

from dataclasses import dataclass

from labkit.model.config import ModelConfig
from labkit.parallel.pipeline import Schedule, gpipe, interleaved, one_f_one_b, zero_bubble
from labkit.parallel.pipeline.legality import why_illegal

RECOMPUTE = ("none", "selective", "full")
CONTEXT = ("ring", "gather", "heads")
SCHEDULES = {  # by the names that plans use: what makes them
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zero_bubble,
}
SIZES = ("dp", "pp", "cp", "ep", "tp", "chunks", "num_micro_batches")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to train on dp * pp * cp * ep * tp ranks.

    Args:
        zero: stage of ZeRO, 0 to 3, over the ranks that hold the same weights.
        recompute: what runs again in backward: "none", "selective" or "full".
        sequence_parallel: norms and residuals hold T/tp tokens a rank.
        schedule: "gpipe", "1f1b", "interleaved" or "zb-h1".
        chunks: stages that a rank holds, v; 2 or more if interleaved, else 1.
        num_micro_batches: of one replica in a step, m.
        context: how the ranks of cp attend: "ring", "gather" or "heads" (labkit/parallel/context).

    Raises:
        ValueError: for values that do not exist or do not go together.
    """

    dp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    tp: int = 1
    zero: int = 0
    recompute: str = "none"
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    chunks: int = 1
    num_micro_batches: int = 1
    context: str = "ring"

    def __post_init__(self) -> None:
        for name in SIZES:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, the least is 1")
        if self.zero not in range(4):
            raise ValueError(f"ZeRO has stages (0, 1, 2, 3), got {self.zero}")
        if self.recompute not in RECOMPUTE:
            raise ValueError(f"recompute {self.recompute!r} is not one of {RECOMPUTE}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule {self.schedule!r} is not one of {tuple(SCHEDULES)}")
        if self.context not in CONTEXT:
            raise ValueError(f"context {self.context!r} is not one of {CONTEXT}")
        if why := self._why_no_schedule():
            raise ValueError(why)

    @property
    def world_size(self) -> int:
        return self.replicas * self.pp * self.tp

    @property
    def replicas(self) -> int:
        """Ranks that hold the same dense weights, each with tokens of its own."""
        return self.dp * self.cp * self.ep

    @property
    def num_stages(self) -> int:
        return self.pp * self.chunks

    def make_schedule(self) -> Schedule:
        """What every rank of a pipeline does, in order."""
        if self.schedule == "interleaved":
            return interleaved(self.pp, self.num_micro_batches, self.chunks)
        return SCHEDULES[self.schedule](self.pp, self.num_micro_batches)

    def check(self, config: ModelConfig, batch_size: int, seq_len: int) -> None:
        """Raise a ValueError, with both numbers and the way out, if the plan does not fit.

        Args:
            config: of the whole model.
            batch_size: sequences in a step, over all ranks.
            seq_len: tokens of a sequence.
        """
        self.check_model(config)
        self.check_batch(config, batch_size, seq_len)

    def check_model(self, config: ModelConfig) -> None:
        """The part of `check` that needs no batch."""
        for what, count in (
            ("heads", config.num_heads),
            ("hidden units", config.intermediate_size),
        ):
            if count % self.tp:
                raise ValueError(
                    f"{count} {what} over tp={self.tp}: the number must divide; use a tp that "
                    f"divides {count}"
                )
        if config.num_kv_heads % self.tp and self.tp % config.num_kv_heads:
            raise ValueError(
                f"{config.num_kv_heads} KV heads over tp={self.tp}: one number must divide the "
                f"other; use a divisor or a multiple of {config.num_kv_heads}"
            )
        for why in (*self._why_no_heads(config), self._why_no_experts(config.num_experts)):
            if why:
                raise ValueError(why)
        if config.num_layers < self.num_stages:
            raise ValueError(
                f"{config.num_layers} layers over {self.num_stages} stages (pp={self.pp}, "
                f"{self.chunks} chunks): each stage needs at least one layer; use fewer of either"
            )
        if config.tied and self.pp > 1 and self.zero > 1:
            raise ValueError(
                f"ZeRO {self.zero} with a tied embedding on pp={self.pp}: first and last stage add "
                "up its gradients whole, and there are none; use ZeRO 1, pp=1 or an untied head"
            )

    def check_batch(self, config: ModelConfig, batch_size: int, seq_len: int) -> None:
        """The part of `check` that each batch must pass."""
        parts = self.dp * self.ep * self.num_micro_batches
        if batch_size < 1 or batch_size % parts:
            over = f"dp={self.dp}" + (f", ep={self.ep}" if self.ep > 1 else "")
            raise ValueError(
                f"a batch of {batch_size} over {over} and {self.num_micro_batches} "
                f"micro-batches: use a multiple of {parts} sequences"
            )
        if seq_len > config.max_seq_len:
            raise ValueError(f"{seq_len} tokens, but max_seq_len is {config.max_seq_len}")
        if self.cp > 1 and seq_len % (2 * self.cp):
            raise ValueError(
                f"{seq_len} tokens over cp={self.cp}: zigzag cuts a sequence into {2 * self.cp} "
                f"chunks; pad it to a multiple of {2 * self.cp}"
            )
        if self.sequence_parallel and seq_len // self.cp % self.tp:
            of_rank = f" of {seq_len} over cp={self.cp}" if self.cp > 1 else ""
            raise ValueError(
                f"{seq_len // self.cp} tokens{of_rank} over tp={self.tp} with sequence "
                f"parallelism: pad the sequence to a multiple of {self.cp * self.tp}"
            )

    def _why_no_heads(self, config: ModelConfig) -> list[str]:
        """The "heads" variant gives each rank of cp some of the heads that tp has left."""
        if self.context != "heads":
            return []
        heads, kv_heads = config.num_heads // self.tp, max(1, config.num_kv_heads // self.tp)
        use = 'use "ring" or "gather", which split no heads'
        found = []
        if heads % self.cp:
            found.append(f"{heads} heads of a tp rank over cp={self.cp}: cp must divide; {use}")
        if kv_heads % self.cp and self.cp % kv_heads:
            what = f"{kv_heads} KV heads of a tp rank over cp={self.cp}"
            found.append(f"{what}: one number must divide the other; {use}")
        return found

    def _why_no_experts(self, num_experts: int) -> str | None:
        if self.ep == 1:
            return None
        if num_experts == 0:
            return f"ep={self.ep} for a model of 0 experts: use ep=1 and a larger dp"
        if self.ep > num_experts:
            most = f"the most is ep={num_experts}"
            return f"{num_experts} experts over ep={self.ep}: a rank would have none; {most}"
        if num_experts % self.ep:
            use = f"use a divisor of {num_experts}"
            return f"{num_experts} experts over ep={self.ep}: the number must divide; {use}"
        return None

    def _why_no_schedule(self) -> str | None:
        name = SCHEDULES[self.schedule].__name__
        if self.schedule == "interleaved" and self.pp == 1:
            return f"interleaved with {self.chunks} chunks on pp=1: nothing to fill; use 1f1b"
        if self.schedule == "zb-h1" and self.recompute != "none":
            return (
                f"zb-h1 with recompute {self.recompute!r}: W needs the inputs that recomputation "
                'drops; use 1f1b, or recompute "none"'
            )
        if self.schedule == "zb-h1" and self.zero > 1:
            return (
                f"zb-h1 with ZeRO {self.zero}: gradients would be sent before W has made them; use "
                "ZeRO 0 or 1, or 1f1b"
            )
        return why_illegal(name, self.pp, self.num_micro_batches, self.chunks)
