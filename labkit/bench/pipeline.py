"""Pipeline parallelism: our executor beside torch.distributed.pipelining.

    python -m labkit bench pipeline

Gloo ranks of one machine train `mini`, cut into as many stages as the schedule has: a step by our
executor over one by torch's, both alive in the same ranks on copies of the same stages, in
interleaved pairs; a pair's time is the slower rank's. A step is forward and backward of 8
micro-batches, without the optimizer, which is the same for both.

Two ranks are judged. Four ranks share two cores: their times are reported.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

from labkit.bench.data_parallel import _slowest_s
from labkit.bench.stats import MIN_PAIRS, Ratio, interleaved, row
from labkit.compose.pipeline_parallel import pipeline_stages
from labkit.launch import run_ranks
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer, initialise, next_token_loss
from labkit.parallel import pipeline

BOUND = 1.0
NUM_MICRO_BATCHES, ROWS, SEQ_LEN = 8, 8, 128
SCHEDULES: dict[str, tuple[Callable[[int, int], pipeline.Schedule], Any]] = {
    "gpipe": (pipeline.gpipe, ScheduleGPipe),
    "1f1b": (pipeline.one_f_one_b, Schedule1F1B),
    "interleaved": (pipeline.interleaved, ScheduleInterleaved1F1B),
    "zero bubble v": (pipeline.zero_bubble_v, ScheduleZBVZeroBubble),
}


def main() -> dict[str, Any]:
    """Print and return the ratios, by number of ranks and schedule."""
    result: dict[str, Any] = {
        "model": "mini",
        "num_micro_batches": NUM_MICRO_BATCHES,
        "rows": ROWS,
        "seq_len": SEQ_LEN,
    }
    for num_ranks in (2, 4):
        for name in SCHEDULES:
            ratios = run_ranks(_beside_torch, num_ranks, name, MIN_PAIRS, timeout=600.0)
            ratio = max(ratios, key=lambda ratio: ratio.low)
            bound = BOUND if num_ranks == 2 else None
            print(row(f"mini step, {num_ranks} ranks, {name}", ratio, bound))
            result[f"{num_ranks}_ranks_{name.replace(' ', '_')}"] = vars(ratio)
    return result


def _beside_torch(group: dist.ProcessGroup, name: str, pairs: int) -> Ratio:
    ours, theirs = _steps(group, name)
    return interleaved(ours, theirs, pairs, clock=partial(_slowest_s, group))


def _steps(
    group: dist.ProcessGroup, name: str
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Our step and torch's."""
    make, theirs = SCHEDULES[name]
    schedule = make(dist.get_world_size(group), NUM_MICRO_BATCHES)
    model = Transformer(PRESETS["mini"])
    initialise(model, torch.Generator().manual_seed(0))
    tokens = ROWS // NUM_MICRO_BATCHES, SEQ_LEN
    stages = pipeline_stages(model, schedule, group, tokens)
    words = torch.randint(0, 259, (ROWS, SEQ_LEN + 1), generator=torch.Generator().manual_seed(0))
    x, targets = words[:, :-1].contiguous(), words[:, 1:].contiguous()  # [B, T] each
    peers = _torch_stages(stages, schedule, group)
    is_multi = schedule.num_stages_per_rank > 1
    torch_schedule = theirs(
        peers if is_multi else peers[0], NUM_MICRO_BATCHES, loss_fn=next_token_loss
    )
    rank = dist.get_rank(group)
    arguments = (x,) if schedule.rank_of(0) == rank else ()
    is_last = schedule.rank_of(schedule.num_stages - 1) == rank

    def our_step() -> None:
        pipeline.run_schedule(schedule, stages, x, targets, group, loss_fn=next_token_loss)
        _forget(*(stage.module for stage in stages))

    def their_step() -> None:
        torch_schedule.step(
            *arguments, target=targets if is_last else None, losses=[] if is_last else None
        )
        _forget(*(peer.submod for peer in peers))

    return our_step, their_step


def _torch_stages(
    stages: list[pipeline.Stage], schedule: pipeline.Schedule, group: dist.ProcessGroup
) -> list[PipelineStage]:
    rank = dist.get_rank(group)
    return [
        PipelineStage(
            copy.deepcopy(stage.module),
            schedule.stage(rank, chunk),
            schedule.num_stages,
            torch.device("cpu"),
            group=group,
        )
        for chunk, stage in enumerate(stages)
    ]


def _forget(*modules: torch.nn.Module) -> None:
    for module in modules:
        module.zero_grad()
