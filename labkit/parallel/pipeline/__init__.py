"""Pipeline parallelism: schedules as data, a validator, a simulator, one executor for all."""

from labkit.parallel.pipeline.actions import Action, Schedule
from labkit.parallel.pipeline.executor import PipelineResult, run_schedule
from labkit.parallel.pipeline.legality import LEGALITY, why_illegal
from labkit.parallel.pipeline.schedules import gpipe, interleaved, naive, one_f_one_b
from labkit.parallel.pipeline.simulator import PipelineTimeline, Span, simulate_schedule
from labkit.parallel.pipeline.stage import Boundary, Stage, split_layers
from labkit.parallel.pipeline.validator import validate
from labkit.parallel.pipeline.zero_bubble import dual_pipe_v, zero_bubble, zero_bubble_v

__all__ = [
    "LEGALITY",
    "Action",
    "Boundary",
    "PipelineResult",
    "PipelineTimeline",
    "Schedule",
    "Span",
    "Stage",
    "dual_pipe_v",
    "gpipe",
    "interleaved",
    "naive",
    "one_f_one_b",
    "run_schedule",
    "simulate_schedule",
    "split_layers",
    "validate",
    "why_illegal",
    "zero_bubble",
    "zero_bubble_v",
]
