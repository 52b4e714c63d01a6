"""Schedules beside torch.distributed.pipelining's own tables: the same actions in the same order.

Promised: for every p in 1 … 6 and every m in 1 … 16 that both allow, each rank's row is torch's,
less its idle slots. torch makes its tables when a schedule is built on real stages, so each is
asked here for its table alone, on an object without stages: nothing runs. Where torch runs a
forward and a backward as one (DualPipeV), they are taken one after the other.
"""

import pytest
from torch.distributed.pipelining import schedules as peer

from labkit.parallel.pipeline import (
    dual_pipe_v,
    gpipe,
    interleaved,
    one_f_one_b,
    why_illegal,
    zero_bubble,
    zero_bubble_v,
)

KINDS = {
    peer.FORWARD: "F",
    peer.FULL_BACKWARD: "B",
    peer.BACKWARD_INPUT: "I",
    peer.BACKWARD_WEIGHT: "W",
}


def bare(kind, num_ranks, num_micro_batches, chunks):
    """A schedule of torch's with the numbers that its table needs and nothing else."""
    schedule = object.__new__(kind)
    schedule.pp_group_size = num_ranks
    schedule.n_local_stages = chunks
    schedule._num_stages = schedule.num_stages = num_ranks * chunks
    schedule._n_microbatches = num_micro_batches
    schedule.number_of_rounds = max(1, num_micro_batches // num_ranks)
    schedule.microbatches_per_round = num_micro_batches // schedule.number_of_rounds
    return schedule


def torch_rows(kind, num_ranks, num_micro_batches, chunks):
    """(kind, stage, micro-batch) of every rank."""
    schedule = bare(kind, num_ranks, num_micro_batches, chunks)
    if issubclass(kind, peer.PipelineScheduleSingle):
        table = schedule._get_pipeline_order()
    else:
        table = {r: schedule._calculate_single_rank_operations(r) for r in range(num_ranks)}
    rows = []
    for rank in range(num_ranks):
        flat = [one for action in table[rank] if action for one in action.sub_actions or [action]]
        rows.append(
            [
                (KINDS[action.computation_type], action.stage_index, action.microbatch_index)
                for action in flat
                if action.computation_type in KINDS
            ]
        )
    return rows


def our_rows(schedule):
    return [
        [(action.kind, schedule.stage(rank, action.chunk), action.micro_batch) for action in row]
        for rank, row in enumerate(schedule.ranks)
    ]


@pytest.mark.parametrize(
    ("make", "kind", "chunks"),
    [
        (gpipe, peer.ScheduleGPipe, 1),
        (one_f_one_b, peer.Schedule1F1B, 1),
        (interleaved, peer.ScheduleInterleaved1F1B, 2),
        (interleaved, peer.ScheduleInterleaved1F1B, 3),
        (zero_bubble, peer.ScheduleInterleavedZeroBubble, 1),
        (zero_bubble_v, peer.ScheduleZBVZeroBubble, 2),
        (dual_pipe_v, peer.ScheduleDualPipeV, 2),
    ],
)
def test_rows_are_torchs(make, kind, chunks):
    compared = 0
    for p in range(1, 7):
        for m in range(1, 17):
            asked = (p, m, chunks) if make is interleaved else (p, m)
            if why_illegal(make.__name__, p, m) or (kind is peer.Schedule1F1B and m < p):
                continue
            ours, torchs = our_rows(make(*asked)), torch_rows(kind, p, m, chunks)
            # torch's table of 1F1B counts the last rank's forwards from 1, and with m < p names
            # micro-batches that do not exist; what torch runs does not come from that table.
            rows = slice(p - 1) if kind is peer.Schedule1F1B else slice(p)
            assert ours[rows] == torchs[rows], asked
            compared += 1
    assert compared > 20
