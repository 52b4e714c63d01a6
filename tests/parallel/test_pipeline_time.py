"""What a run costs: its time, replayed from the log of real ranks, and the bytes that it keeps.

Oracles: `simulate_schedule`, and by hand the bytes that autograd saves for one micro-batch.
Promised: virtual time within 2 % of the simulator for every schedule, peak bytes in proportion to
the schedule's micro-batches in flight, and nothing left afterwards.
"""

import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

from labkit.launch import run_ranks
from labkit.measure.events import Compute
from labkit.measure.fabric import Fabric, replay
from labkit.measure.ledger import CommLedger
from labkit.measure.log import EventLog
from labkit.measure.memory import SavedActivations
from labkit.parallel.pipeline import (
    Boundary,
    Stage,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    run_schedule,
    simulate_schedule,
    zero_bubble,
    zero_bubble_v,
)
from labkit.parallel.pipeline.exchange import batches, taken
from labkit.parallel.pipeline.validator import fault

ROWS, WIDTH, M = 4, 8, 8
BYTES = 8 * ROWS * WIDTH  # of a micro-batch
FORWARD_FLOPS = 2 * ROWS * WIDTH**2
MESSAGE_S = 0.1  # where a forward takes 1 s


class Part(nn.Module):
    """A gain, so that all stages compute a gradient of their input, and one linear layer."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.linear(x * self.gain)


def schedules(num_ranks):
    makers = naive, gpipe, one_f_one_b, interleaved, zero_bubble, zero_bubble_v
    return [make(num_ranks, M) for make in makers if make is not interleaved or M % num_ranks == 0]


def step(group, schedule, observe=None):
    takes = Boundary(shape=(ROWS, WIDTH), dtype=torch.float64)
    stages = [Stage(Part().double(), takes) for _ in range(schedule.num_stages_per_rank)]
    x = torch.ones(schedule.num_micro_batches * ROWS, WIDTH, dtype=torch.float64)
    run_schedule(schedule, stages, x, x, group, loss_fn=lambda y, t: (y - t).sum(), observe=observe)
    return stages


def logged(group):
    logs = []
    for schedule in schedules(dist.get_world_size(group)):
        with EventLog() as log:
            step(group, schedule, lambda action, log=log: log.mark(str(action)))
        logs.append(log.events)
    return logs


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_virtual_time_is_the_simulators(world_size):
    ranks = run_ranks(logged, world_size)
    fabric = Fabric(alpha=0.0, beta=MESSAGE_S / BYTES, flops=FORWARD_FLOPS)
    for number, schedule in enumerate(schedules(world_size)):
        logs = [rank[number] for rank in ranks]
        timeline = replay(logs, fabric)
        for rank, actions in enumerate(schedule.ranks):
            names = [mark.name for mark in timeline.marks if mark.rank == rank]
            assert names == list(map(str, actions))
            flops = sum(event.flops for event in logs[rank] if isinstance(event, Compute))
            assert flops == 3 * M * schedule.num_stages_per_rank * FORWARD_FLOPS
        began_s = min(mark.time_s for mark in timeline.marks)  # after the ranks have agreed
        expected = simulate_schedule(schedule, message_s=MESSAGE_S)
        assert timeline.step_s - began_s == pytest.approx(expected.makespan_s, rel=0.02)


def kept_bytes(group):
    """Peak and rest of what autograd saves, for each of three schedules."""
    found = []
    for schedule in (gpipe(2, M), one_f_one_b(2, M), naive(2, M)):
        peak = 0
        with SavedActivations() as saved:

            def look(action, saved=saved):
                nonlocal peak
                peak = max(peak, saved.live_bytes)

            step(group, schedule, look)
        found.append((peak, saved.live_bytes))
    return found


def test_bytes_in_flight():
    """P8: m, min(m, p - rank) and 1 micro-batches, not only in count but in bytes saved.

    By hand: the linear layer keeps its input and weight. The gain keeps its input; on rank 0 that
    is a part of the batch, which counts as the whole; elsewhere it keeps the gain too.
    """
    first, second = run_ranks(kept_bytes, 2)
    for (peak, rest), num_kept in zip(first, (M, 2, 1), strict=True):
        assert (peak, rest) == (8 * WIDTH**2 + M * BYTES + num_kept * BYTES, 0)
    for (peak, rest), num_kept in zip(second, (M, 1, 1), strict=True):
        assert (peak, rest) == (8 * (WIDTH**2 + WIDTH) + num_kept * 2 * BYTES, 0)


def split_bytes(group):
    """Bytes that zero bubble's one rank keeps before F, I and W, and after."""
    found = []
    with CommLedger() as ledger, SavedActivations() as saved:
        stages = step(group, zero_bubble(1, 1), lambda action: found.append(saved.live_bytes))
    return found, saved.live_bytes, [stage.num_in_flight for stage in stages], ledger.count("send")


def test_the_graph_is_freed_after_the_gradient_of_the_input():
    ((found, rest, in_flight, sent),) = run_ranks(split_bytes, 1)
    assert found[0] == found[2] == rest == 0
    assert found[1] > 0
    assert (in_flight, sent) == ([0], 0)


def outputs_alive(group):
    """The most outputs of the stage that were alive when an action began."""
    outputs, most = [], 0

    def look(action):
        nonlocal most
        most = max(most, sum(output() is not None for output in outputs))

    before = Part.forward

    def forward(self, x):
        y = before(self, x)
        outputs.append(weakref.ref(y))
        return y

    Part.forward = forward
    step(group, gpipe(2, M), look)
    return most, len(outputs)


def test_an_output_goes_once_it_is_sent():
    """Backward needs the output's place in the graph, not its numbers."""
    assert run_ranks(outputs_alive, 2) == [(0, M + 1)] * 2  # one more finds the shape


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_receives_are_posted_in_the_order_of_the_sends(num_ranks):
    """Every message once, and no later than the action that takes it."""
    for schedule in schedules(num_ranks):
        ranks = [batches(schedule, rank, 1) for rank in range(num_ranks)]
        for source in range(num_ranks):
            for target, row in enumerate(ranks):
                sent = [m for b in ranks[source] for m in b.sends if m.target == target]
                received = [m for b in row for m in b.receives if m.source == source]
                assert sent == received
        for rank, actions in enumerate(schedule.ranks):
            posted = set()
            for action, batch in zip(actions, ranks[rank], strict=False):
                posted.update(batch.receives)
                message = taken(schedule, rank, action)
                assert message is None or message.source == rank or message in posted


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
def test_batches_that_wait_for_one_another(num_ranks):
    """P3, as strict as NCCL: a rank's next batch begins when all messages of its last have met.

    Without looking ahead that is the validator's "batched"; one action ahead, all would hang.
    """
    for schedule in schedules(num_ranks):
        ranks = [batches(schedule, rank, 0) for rank in range(num_ranks)]
        assert bool(stuck(ranks)) == (fault(schedule, "batched") is not None)
        assert stuck([batches(schedule, rank, 1) for rank in range(num_ranks)])
    assert not stuck([batches(one_f_one_b(num_ranks, M), rank, 0) for rank in range(num_ranks)])


def stuck(ranks):
    """Ranks that never come to their end, if a batch ends when all its messages have met."""
    at, before = [0] * len(ranks), None
    while at != before:
        before = list(at)
        posted = [
            {m for batch in row[: number + 1] for m in batch.sends + batch.receives}
            for row, number in zip(ranks, at, strict=True)
        ]
        for rank, row in enumerate(ranks):
            batch = row[at[rank]] if at[rank] < len(row) else None
            if batch is not None:
                others = [posted[m.target] for m in batch.sends]
                others += [posted[m.source] for m in batch.receives]
                messages = batch.sends + batch.receives
                at[rank] += all(m in other for m, other in zip(messages, others, strict=True))
    return [rank for rank, row in enumerate(ranks) if at[rank] < len(row)]
