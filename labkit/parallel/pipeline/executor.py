"""One executor for every schedule: it does what the rank's action list says, and decides nothing.

    for action in row:
        post this batch of messages         what was made before, what is needed now and next
        wait for what the action takes
        run it on its stage

The gradient is that of the mean over micro-batches, or over tokens: the loss of each is divided
once, before backward, and gradients are only added up. So m micro-batches, and several runs before
one optimizer step, need no second division.

Cost: messages as in exchange.py; the stash of stage.py, at most m micro-batches a stage for GPipe
and min(m, p - rank) for 1F1B.
Source: GPipe (arXiv 1811.06965); PipeDream-Flush, 1F1B (arXiv 2104.04473), section 2.2.

Shapes: B rows of the batch, b = B/m rows of a micro-batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from labkit.parallel.pipeline.actions import Action, Schedule
from labkit.parallel.pipeline.agreement import agree
from labkit.parallel.pipeline.exchange import Exchange, batches, given, taken
from labkit.parallel.pipeline.stage import Boundary, Stage
from labkit.parallel.pipeline.validator import Exchange as Legal

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class PipelineResult:
    """What a run tells.

    Args:
        loss: of the whole batch, on the rank of the last stage; None elsewhere.
        peak_in_flight: most micro-batches that this rank kept at once, summed over its stages.
    """

    loss: torch.Tensor | None
    peak_in_flight: int


def run_schedule(
    schedule: Schedule,
    stages: Sequence[Stage],
    inputs: torch.Tensor | None,
    targets: torch.Tensor | None,
    group: dist.ProcessGroup,
    *,
    loss_fn: Loss,
    loss_divisor: float | None = None,
    observe: Callable[[Action], None] | None = None,
    boundaries: Sequence[Boundary] | None = None,
) -> PipelineResult:
    """Forward and backward of one batch; gradients are added to those of the stages' parameters.

    Args:
        schedule: of as many ranks as the group has; the same on every rank.
        stages: this rank's, by chunk.
        inputs: [B, ...], read by the rank of the first stage.
        targets: [B, ...], read by the rank of the last stage.
        group: the pipeline; its rank r is the schedule's.
        loss_fn: (output, targets) of one micro-batch to a number: a mean, or a sum over tokens.
        loss_divisor: what the micro-batches' losses, added up, are divided by: the tokens of the
            batch where loss_fn is a sum; None is m, the mean of means.
        observe: called with each action before it starts.
        boundaries: what each stage takes, by stage, from a caller who knows that everything fits;
            the ranks then compare no notes.

    Raises:
        ValueError: on every rank alike and before anything is sent, if the schedule is illegal, the
            batch does not divide, or stages and batch do not fit together.
    """
    m, rank = schedule.num_micro_batches, dist.get_rank(group)
    divisor = m if loss_divisor is None else loss_divisor
    on_gpu = any(stage.device.type != "cpu" for stage in stages)
    legal_for: Legal = "batched" if on_gpu else "asynchronous"
    if boundaries is None:
        boundaries = agree(schedule, stages, inputs, targets, divisor, group, legal_for=legal_for)
    run = _Run(
        schedule=schedule,
        rank=rank,
        stages=stages,
        exchange=Exchange(group, boundaries, stages[0].device),
        inputs=_parts(inputs, m, schedule.rank_of(0) == rank),
        targets=_parts(targets, m, schedule.rank_of(schedule.num_stages - 1) == rank),
        score=lambda y, part: loss_fn(y, part) / divisor,
    )
    for stage in stages:
        stage.reset()
    *before, after = batches(schedule, rank, look_ahead=0 if on_gpu else 1)
    peak = 0
    for action, batch in zip(schedule.ranks[rank], before, strict=True):
        run.exchange.start(batch)
        if observe is not None:
            observe(action)
        run.do(action)
        peak = max(peak, sum(stage.num_in_flight for stage in stages))
    run.exchange.start(after)
    run.exchange.finish()
    return PipelineResult(loss=run.loss, peak_in_flight=peak)


def _parts(x: torch.Tensor | None, m: int, is_read: bool) -> Sequence[torch.Tensor]:
    """The micro-batches of a batch, [b, ...] each, on the rank that reads them."""
    return x.detach().chunk(m) if is_read and x is not None else ()


@dataclass(kw_only=True)
class _Run:
    """One rank's part of a run."""

    schedule: Schedule
    rank: int
    stages: Sequence[Stage]
    exchange: Exchange
    inputs: Sequence[torch.Tensor]
    targets: Sequence[torch.Tensor]
    score: Loss
    loss: torch.Tensor | None = None

    def do(self, action: Action) -> None:
        """Run one action, and hand on what it makes."""
        stage = self.stages[action.chunk]
        if action.kind == "W":
            stage.backward_weights(action.micro_batch)
            return
        message = taken(self.schedule, self.rank, action)
        x = None if message is None else self.exchange.take(message)
        made: torch.Tensor | None
        if action.kind == "F":
            made = self._forward(stage, action, x)
        else:
            made = stage.backward(action.micro_batch, x)
        passed_on = given(self.schedule, self.rank, action)
        if passed_on is not None and made is not None:
            self.exchange.give(passed_on, made)

    def _forward(self, stage: Stage, action: Action, given_x: torch.Tensor | None) -> torch.Tensor:
        number, chunk = action.micro_batch, action.chunk
        x = self.inputs[number] if given_x is None else given_x.requires_grad_()
        split = Action("W", number, chunk) in self.schedule.ranks[self.rank]
        if self.schedule.stage(self.rank, chunk) < self.schedule.num_stages - 1:
            return stage.forward(number, x, split=split)
        target = self.targets[number]
        loss = stage.forward(number, x, split=split, then=lambda y: self.score(y, target))
        self.loss = loss if self.loss is None else self.loss + loss
        return loss
