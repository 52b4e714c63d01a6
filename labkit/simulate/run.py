"""One training step of labkit's own code as one rank, metered: in a fake world, or in a real one.

    job = Job(config=model_config("llama3-70b"), plan=Plan(dp=128, tp=8, zero=3), seq_len=8192)
    for run in simulate(job):
        run.peak.by_category, run.ledger.bytes_sent(axis="dp"), run.flops

Every rank of dp and tp does what rank 0 of them does, so one rank a stage stands for all: p ranks
out of dp·p·tp. What is run is `labkit.compose.parallelize` and its step, nothing else; `run_rank`
does the same on ranks that exist, and the tests compare the two.

Before the step that counts, each optimizer makes its state, from gradients of zero, and each stage
runs forward once on a short sequence, so that ZeRO 3 knows the order of its units.

Precision "mixed" has bf16 weights and gradients and fp32 optimizer state, ZeRO 3 fp32 shards and
bf16 gathered weights; "fp32" has fp32 all through.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from labkit.comm.mesh import Mesh
from labkit.compose.parallelize import ParallelModel, parallelize
from labkit.compose.plan import Plan
from labkit.measure.events import Compute, Event
from labkit.measure.ledger import CommLedger
from labkit.measure.log import EventLog
from labkit.model.config import PRESETS, ModelConfig
from labkit.model.transformer import Transformer
from labkit.simulate.holding import Holding
from labkit.simulate.meter import Meter
from labkit.simulate.world import fake_world

PRECISIONS = {"mixed": torch.bfloat16, "fp32": torch.float32}
MIB = 2**20
LEARNING_RATE, CLIP_NORM = 3e-4, 1.0  # they change no byte, except that there is a clip
Told = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be trained, and how.

    Args:
        config: shape of the model.
        micro_batch_size: sequences of one micro-batch of one replica.
        seq_len: tokens of a sequence.
        precision: "mixed" or "fp32".
        bucket_bytes: limit of a bucket in stages 0 to 2 of ZeRO. Large worlds want large ones: each
            bucket is a message to every other rank.

    Raises:
        ValueError: for another precision, or sizes that do not fit together.
    """

    config: ModelConfig
    plan: Plan
    micro_batch_size: int = 1
    seq_len: int
    precision: str = "mixed"
    bucket_bytes: int = 4 * MIB

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is not one of {tuple(PRECISIONS)}")
        if self.micro_batch_size < 1 or self.seq_len < 1:
            sizes = f"{self.micro_batch_size} sequences of {self.seq_len} tokens"
            raise ValueError(f"a micro-batch of {sizes}: the least is 1 of 1")
        self.plan.check(self.config, self.batch_size, self.seq_len)

    @property
    def batch_size(self) -> int:
        """Sequences in a step, over all ranks."""
        return self.plan.dp * self.plan.num_micro_batches * self.micro_batch_size


@dataclass(frozen=True, kw_only=True)
class RankRun:
    """What one rank did and held in a step; plain data.

    Args:
        rank: in the world.
        ledger: every call of the step.
        events: the log's, for replay.
        held: at the end of the last backward.
        peak: at the moment with most bytes.
        most_kept_bytes: by autograd for backward, at the moment with most of these.
    """

    rank: int
    ledger: CommLedger
    events: list[Event]
    held: Holding
    peak: Holding
    most_kept_bytes: int

    @property
    def flops(self) -> float:
        """Of matrix products and attention, by torch's formulas."""
        return sum(event.flops for event in self.events if isinstance(event, Compute))


def model_config(name: str) -> ModelConfig:
    """A preset by its name.

    Raises:
        ValueError: for a name that is not in PRESETS.
    """
    if name not in PRESETS:
        raise ValueError(f"no model {name!r}; there are {', '.join(sorted(PRESETS))}")
    return PRESETS[name]


def simulate(job: Job, told: Told = lambda what, done, total: None) -> list[RankRun]:
    """Run rank 0 of dp and tp of every stage, each in a fake world of its own.

    Args:
        job: what to run.
        told: called with what is about to be done, and how many of how many parts are.
    """
    runs = []
    for stage in range(job.plan.pp):
        total = PARTS * job.plan.pp
        tell = partial(_tell, told, f"stage {stage}", PARTS * stage, total)
        with fake_world(job.plan.world_size, representative(job.plan, stage)) as answers:
            runs.append(run_rank(job, above=answers, tell=tell))
        told("done", PARTS * (stage + 1), total)
    return runs


def representative(plan: Plan, stage: int) -> int:
    """The global rank with coordinate 0 in dp and tp, by the mesh's order of the axes."""
    return stage * plan.tp


PARTS = 3  # build, warm up, step


def _tell(told: Told, where: str, before: int, total: int, what: str, part: int) -> None:
    told(f"{where}: {what}", before + part, total)


def run_rank(
    job: Job,
    *,
    above: AbstractContextManager | None = None,
    tell: Callable[[str, int], None] = lambda what, part: None,
) -> RankRun:
    """Build this rank's part and run one step, in whatever world this process is in.

    Args:
        job: its plan's world size is that of the world.
        above: entered above the count of FLOPs; see fake_world.
        tell: called with what is about to be done, and its number.
    """
    meter = Meter()
    tell("build", 0)
    with meter:
        parallel = _build(job)
        for stage, optimizer in zip(parallel.stages, parallel.optimizers, strict=True):
            meter.watch(stage, optimizer)
        tell("warm up", 1)
        _warm_up(parallel, job)
        words = torch.zeros(
            job.micro_batch_size * job.plan.num_micro_batches, job.seq_len, dtype=torch.int64
        )
    tell("step", 2)
    with CommLedger() as ledger, EventLog() as log, above or nullcontext(), meter.step():
        _step(parallel, words)
    return RankRun(
        rank=dist.get_rank(),
        ledger=ledger,
        events=log.events,
        held=meter.held(),
        peak=meter.peak(),
        most_kept_bytes=meter.most_kept_bytes,
    )


def _build(job: Job) -> ParallelModel:
    plan, before = job.plan, torch.get_default_dtype()
    mesh = Mesh(dp=plan.dp, pp=plan.pp, tp=plan.tp)
    # Not model.to(dtype): fake parameters cannot be swapped for others.
    torch.set_default_dtype(PRECISIONS[job.precision])
    try:
        model = Transformer(job.config)
    finally:
        torch.set_default_dtype(before)
    # Fused: the plain loops ask each step counter for its value.
    make_optimizer = partial(torch.optim.AdamW, lr=LEARNING_RATE, fused=True)
    return parallelize(model, plan, mesh, make_optimizer, bucket_bytes=job.bucket_bytes)


def _warm_up(parallel: ParallelModel, job: Job) -> None:
    """Let optimizers make their state, and stages learn their order."""
    for optimizer in parallel.optimizers:
        owned = [p for group in optimizer.param_groups for p in group["params"] if p.numel()]
        for parameter in owned:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    length = job.plan.tp if job.plan.sequence_parallel else 1
    with torch.no_grad():
        for stage in parallel.stages:
            x = torch.zeros(1, length, dtype=torch.int64)
            if not stage.is_first:
                x = torch.zeros(1, 1, job.config.hidden_size, dtype=PRECISIONS[job.precision])
            stage(x)


def _step(parallel: ParallelModel, words: torch.Tensor) -> None:
    parallel.forward_backward(words, words)
    parallel.clip(CLIP_NORM)
    parallel.update()
