"""Training on many ranks: what each rank does from the first step to the last save.

    done = train_on_ranks(group, job, reporter, device)        # every rank, the same job

A step is `ParallelModel.step` on the batch that one process would take; the rate follows the step,
and weights and batches the seed. So any layout makes the same run but for rounding, and one may go
on where another stopped.

bf16 is autocast around each stage's forward: products in bf16, weights, residuals and what stages
send in fp32. fp16 is refused: its loss scale is one process's (loss_scale.py).

Cost: beside the step's own, an all-reduce of 8 bytes a step: whether a rank was asked to stop.
Source: as trainer.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_reduce
from labkit.comm.mesh import AXES
from labkit.compose import ParallelModel, Plan, parallelize
from labkit.compose.axes import make_mesh
from labkit.compose.layout_files import agreed, nothing
from labkit.compose.manifest import MANIFEST, latest, read_manifest, step_folder
from labkit.compose.parallel_files import check_model, load_parallel, save_parallel
from labkit.compose.whole_state import load_whole_state
from labkit.model.config import PRESETS
from labkit.model.corpus import Corpus
from labkit.model.transformer import Transformer, initialise
from labkit.train.data import Batches, token_stream
from labkit.train.placement import rank_order
from labkit.train.resume import read_state
from labkit.train.run_files import OF_A_LAYOUT, has_run, last_saved, prune, read_run, write_run
from labkit.train.trainer import TrainSettings, learning_rate


class Reporter(Protocol):
    """Rank 0's line to who watches; what it is told has step, loss and lr."""

    def tell(self, word: Mapping[str, Any]) -> None: ...

    def stop_wanted(self) -> bool: ...


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run on many ranks.

    Args:
        name: a preset of the model.
        across: axis whose ranks lie furthest apart (placement.py); None keeps the mesh's order.
        out: folder of the run; on several hosts one that all of them see.
        save_every: steps between checkpoints.
        resume: go on where the run in `out` stopped.
    """

    name: str
    settings: TrainSettings
    plan: Plan
    text: Corpus
    out: Path
    save_every: int
    resume: bool
    across: str | None = None

    def __post_init__(self) -> None:
        if self.save_every < 1:
            raise ValueError(f"save_every is {self.save_every}; it must be at least 1")
        if self.settings.precision == "fp16":
            raise ValueError(
                f"precision 'fp16' on {self.plan.world_size} ranks: the loss scale is decided in "
                "one process; use bf16 or fp32"
            )
        if self.settings.precision == "bf16" and self.plan.schedule == "zb-h1":
            raise ValueError(
                "precision 'bf16' with zb-h1: its split backward takes products in the weights' "
                "own precision; use fp32, or 1f1b"
            )
        _ = self.order  # or it says why not

    def check(self) -> None:
        """Raise what can be known before a rank starts.

        Raises:
            FileNotFoundError, ValueError: the plan does not fit model or batch; there is nothing to
                resume, or something that is not to be resumed; what was saved is damaged.
        """
        settings, plan = self.settings, self.plan
        plan.check(PRESETS[self.name], settings.batch_size, settings.seq_len)
        self.batches()
        if self.resume:
            step, in_shards = last_saved(self.out)
            if in_shards:
                check_model(read_manifest(latest(self.out)), asdict(PRESETS[self.name]))
                read_run(self.out, settings, step)
            else:
                read_state(self.out, settings, OF_A_LAYOUT)
        elif has_run(self.out):
            raise ValueError(
                f"{self.out} holds a run; add --resume to go on, or give another --out"
            )

    @property
    def order(self) -> list[int] | None:
        """Global ranks in the order of the mesh's grid; None for the mesh's own."""
        if self.across is None:
            return None
        return rank_order({axis: getattr(self.plan, axis) for axis in AXES}, self.across)

    def batches(self) -> Batches:
        """What the steps train on, the same on every rank."""
        settings = self.settings
        return Batches(
            stream=token_stream(self.text.train),
            batch_size=settings.batch_size,
            seq_len=settings.seq_len,
            seed=settings.seed,
        )


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a run ended: losses of all its steps, and whether these are all that were asked for."""

    losses: list[float]
    complete: bool


def train_on_ranks(
    group: dist.ProcessGroup, job: Job, reporter: Reporter, device: torch.device
) -> Done:
    """Train to the end, or until a rank is asked to stop; then everything is on the disk.

    Raises:
        OSError, ValueError: on every rank, if a save or what is resumed fails.
    """
    parallel = build(job, device)
    losses = _resumed(job, parallel) if job.resume else []
    batches, settings, saved = job.batches(), job.settings, len(losses)
    for step in range(len(losses), settings.steps):
        if _any_asked(group, reporter):
            break
        lr = learning_rate(step, settings)
        set_rate(parallel, lr)
        tokens, targets = (x.to(device) for x in batches.batch(step))
        losses.append(parallel.step(tokens, targets).item())
        if dist.get_rank(group) == 0:
            reporter.tell({"step": len(losses), "loss": losses[-1], "lr": lr})
        if len(losses) % job.save_every == 0:
            saved = save(job, parallel, losses, group)
    if saved < len(losses) or (losses and not _is_saved(job, len(losses))):
        save(job, parallel, losses, group)
    return Done(losses=losses, complete=len(losses) == settings.steps)


def build(job: Job, device: torch.device) -> ParallelModel:
    """This rank's part of the model that one process would start from."""
    settings = job.settings
    model = Transformer(PRESETS[job.name])
    initialise(model, torch.Generator().manual_seed(settings.seed))
    parallel = parallelize(
        model.to(device),
        job.plan,
        make_mesh(job.plan, ranks=job.order),
        partial(
            torch.optim.AdamW,
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        ),
        clip_norm=settings.clip_norm,
        options=lambda name, shape: {} if len(shape) > 1 else {"weight_decay": 0.0},
        balancing_rate=settings.balancing_rate,
    )
    if settings.precision == "bf16":
        _autocast(parallel, device)
    return parallel


def set_rate(parallel: ParallelModel, lr: float) -> None:
    """The learning rate of the next step."""
    for optimizer in parallel.optimizers:
        for each in optimizer.param_groups:
            each["lr"] = lr


def save(job: Job, parallel: ParallelModel, losses: list[float], group: dist.ProcessGroup) -> int:
    """Write a checkpoint and forget the oldest; returns its step.

    Raises:
        OSError, ValueError: on every rank; the checkpoints before this one stay.
    """
    first = dist.get_rank(group) == 0
    agreed(group, partial(write_run, job.out, job.settings, losses) if first else nothing)
    save_parallel(job.out, parallel, step=len(losses))
    agreed(group, partial(prune, job.out) if first else nothing)
    return len(losses)


def _resumed(job: Job, parallel: ParallelModel) -> list[float]:
    """Fill this rank's part; returns the losses of the steps done."""
    step, in_shards = last_saved(job.out)
    if in_shards:
        load_parallel(job.out, parallel, step=step)
        return read_run(job.out, job.settings, step)
    full, losses = read_state(job.out, job.settings, OF_A_LAYOUT)
    load_whole_state(full, parallel)
    return losses


def _is_saved(job: Job, step: int) -> bool:
    return (step_folder(job.out, step) / MANIFEST).exists()


def _any_asked(group: dist.ProcessGroup, reporter: Reporter) -> bool:
    """One decision for all ranks; a rank that is asked later than its peers stops with them."""
    asked = torch.tensor(int(reporter.stop_wanted()))
    return bool(all_reduce(asked, group, dist.ReduceOp.MAX))


def _autocast(parallel: ParallelModel, device: torch.device) -> None:
    """Run the stages' forward in bf16; the loss is taken in fp32 by itself."""
    for stage in parallel.stages:
        forward: Callable[..., torch.Tensor] = stage.forward
        stage.forward = torch.autocast(device.type, torch.bfloat16)(forward)  # type: ignore[method-assign]
