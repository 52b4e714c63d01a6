"""All ranks compare notes before a run, so that all go on or all raise the same error.

A rank sees its own stages and perhaps the batch. Whether those of two ranks fit together, nobody
sees alone; and a rank that raised alone would leave the others waiting for its messages. So each
tells the others which schedule it runs, what its stages take and give, and what is wrong, and all
judge the same notes.

Cost: one all-gather of a small object a run, about 100 bytes a stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import torch
import torch.distributed as dist

from labkit.parallel.pipeline.actions import Schedule
from labkit.parallel.pipeline.stage import Boundary, Stage
from labkit.parallel.pipeline.validator import Exchange, validate


@dataclass(frozen=True, kw_only=True)
class _Notes:
    """What a rank tells the others before a run."""

    schedule: tuple[str, int, int, int]  # name, ranks, micro-batches, checksum of the actions
    stages: dict[int, tuple[Boundary, Boundary]]  # stage: takes, gives
    inputs: Boundary | None
    targets: Boundary | None
    wrong: str | None


def agree(
    schedule: Schedule,
    stages: Sequence[Stage],
    inputs: torch.Tensor | None,
    targets: torch.Tensor | None,
    loss_divisor: float,
    group: dist.ProcessGroup,
    *,
    legal_for: Exchange,
) -> list[Boundary]:
    """What every stage takes, after all ranks have found that everything fits together.

    Args:
        schedule, stages, inputs, targets, loss_divisor, group: as in run_schedule.
        legal_for: the exchange under which the schedule must come to its end.

    Raises:
        ValueError: on every rank, with the same words.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    told: dict[int, tuple[Boundary, Boundary]] = {}
    try:
        _check_schedule(schedule, size, legal_for)
        _check_own(schedule, rank, stages, loss_divisor)
        told = _told(schedule, rank, stages)
        wrong = None
    except ValueError as error:
        wrong = str(error)
    mine = _Notes(
        schedule=(
            schedule.name,
            schedule.num_ranks,
            schedule.num_micro_batches,
            crc32("\n".join(schedule.rows()).encode()),
        ),
        stages=told,
        inputs=None if inputs is None else Boundary.of(inputs),
        targets=None if targets is None else Boundary.of(targets),
        wrong=wrong,
    )
    notes: list[_Notes] = [mine] * size
    dist.all_gather_object(notes, mine, group=group)
    wrong = _wrong(schedule, notes)
    if wrong is not None:
        raise ValueError(wrong)
    takes = {stage: pair[0] for note in notes for stage, pair in note.stages.items()}
    return [takes[stage] for stage in range(schedule.num_stages)]


def _check_schedule(schedule: Schedule, size: int, legal_for: Exchange) -> None:
    if size != schedule.num_ranks:
        raise ValueError(
            f"{schedule.name} is a schedule of {schedule.num_ranks} ranks, the group has {size}"
        )
    validate(schedule, exchange=legal_for)


def _check_own(schedule: Schedule, rank: int, stages: Sequence[Stage], loss_divisor: float) -> None:
    """What this rank can see alone."""
    if len(stages) != schedule.num_stages_per_rank:
        raise ValueError(
            f"rank {rank} has {len(stages)} stages, {schedule.name} runs "
            f"{schedule.num_stages_per_rank} a rank"
        )
    if loss_divisor <= 0:
        raise ValueError(f"loss_divisor is {loss_divisor} on rank {rank}: it must be over 0")


def _told(
    schedule: Schedule, rank: int, stages: Sequence[Stage]
) -> dict[int, tuple[Boundary, Boundary]]:
    """What each of this rank's stages takes and gives."""
    told = {}
    for chunk, stage in enumerate(stages):
        number = schedule.stage(rank, chunk)
        try:
            told[number] = (stage.takes, stage.gives())
        except ValueError as error:
            raise ValueError(f"stage {number} {error}") from error
    return told


def _wrong(schedule: Schedule, notes: Sequence[_Notes]) -> str | None:
    """The first thing that does not fit; the same on every rank, for the notes are."""
    for rank, note in enumerate(notes):
        if note.schedule != notes[0].schedule:
            return f"rank 0 runs {notes[0].schedule}, rank {rank} runs {note.schedule}"
        if note.wrong is not None:
            return note.wrong
    told = {stage: pair for note in notes for stage, pair in note.stages.items()}
    first = notes[schedule.rank_of(0)].inputs
    last = notes[schedule.rank_of(schedule.num_stages - 1)].targets
    m = schedule.num_micro_batches
    return _wrong_batch(m, first, last, told[0][0]) or _wrong_boundary(told)


def _wrong_batch(
    m: int, inputs: Boundary | None, targets: Boundary | None, takes: Boundary
) -> str | None:
    if inputs is None or targets is None:
        missing = "inputs on the rank of the first stage", "targets on that of the last"
        return f"a run needs {missing[0] if inputs is None else missing[1]}; got None"
    if not inputs.shape or not targets.shape or inputs.shape[0] != targets.shape[0]:
        return f"inputs are {inputs}, targets are {targets}: the rows must be as many"
    rows = inputs.shape[0]
    if rows % m or not rows:
        return (
            f"a batch of {rows} rows does not divide over {m} micro-batches: pad it, drop "
            f"{rows % m} rows, or use another number of micro-batches"
        )
    micro_batch = Boundary(shape=(rows // m, *inputs.shape[1:]), dtype=inputs.dtype)
    if micro_batch != takes:
        return f"stage 0 takes {takes}, a micro-batch of the inputs is {micro_batch}"
    return None


def _wrong_boundary(told: dict[int, tuple[Boundary, Boundary]]) -> str | None:
    for stage in range(1, len(told)):
        takes, gives = told[stage][0], told[stage - 1][1]
        if takes != gives:
            return f"stage {stage - 1} gives {gives}, stage {stage} takes {takes}"
        if not takes.dtype.is_floating_point:
            return f"stage {stage} takes {takes}, of which there is no gradient"
    return None
