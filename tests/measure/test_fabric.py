"""Steps in virtual time: overlap, stragglers, pipelines, and a step recorded from running ranks.

Oracle: sums written out in the test, of whole numbers, so they are equal, not close.
"""

import pytest
import torch
import torch.distributed as dist

from labkit.cost import collectives as cost
from labkit.launch import run_ranks
from labkit.measure.events import Compute, Mark, Wait
from labkit.measure.fabric import Fabric, replay
from labkit.measure.log import EventLog
from labkit.measure.timeline import COMPUTE
from tests.measure.hand_logs import UNIT, close, collective, message


def recorded_step(group, overlapped):
    a, b = torch.ones(8, 16), torch.ones(16, 4)  # a product is 2·8·16·4 = 1024 FLOP
    gradient = torch.ones(64)  # 256 bytes
    with EventLog() as log:
        a @ b
        work = dist.all_reduce(gradient, group=group, async_op=True)
        if not overlapped:
            work.wait()
        a @ b
        work.wait()
    return log.events


def test_a_recorded_step_overlaps_as_it_ran():
    fabric = Fabric(alpha=10.0, beta=1.0, flops=1.0)
    transfer_s = cost.ring_all_reduce_time_s(256, 2, 10.0, 1.0)  # 276, less than the product's 1024
    for overlapped, step_s in [(True, 2048), (False, 2048 + transfer_s)]:
        timeline = replay(run_ranks(recorded_step, 2, overlapped), fabric)
        assert timeline.step_s == step_s
        assert timeline.ranks[1].overlapped_communication_s == (transfer_s if overlapped else 0)


def test_overlap_costs_the_longer_of_the_two():
    # Two ranks, 8 bytes: an all-reduce takes 2·(1 + 4·0.25) = 4.
    ranks = (0, 1)
    for compute, step in [(10, 10), (4, 4), (1, 4)]:
        log = [collective(0, ranks), Compute(flops=compute), Wait(id=0)]
        timeline = replay([log, log], UNIT)
        assert timeline.step_s == step == max(compute, 4)
        for rank in timeline.ranks:
            assert rank.overlapped_communication_s == min(compute, 4)
            assert rank.exposed_communication_s == step - compute
            assert rank.waiting_s == 0
        sequential = [collective(0, ranks), Wait(id=0), Compute(flops=compute)]
        assert replay([sequential] * 2, UNIT).step_s == compute + 4


def test_buckets_launched_during_backward_beat_one_after_it():
    # Backward in three parts of 5; three buckets of 4 each against one all-reduce of 24 bytes: 8.
    ranks = (0, 1)
    overlapped = []
    for bucket in range(3):
        overlapped += [Compute(flops=5), collective(bucket, ranks)]
    overlapped += [Wait(id=bucket) for bucket in range(3)]
    late = [Compute(flops=15), collective(0, ranks, size=24), Wait(id=0)]
    assert replay([overlapped] * 2, UNIT).step_s == 15 + 4
    assert replay([late] * 2, UNIT).step_s == 15 + 8


def test_a_straggler_delays_everyone():
    fabric = Fabric(alpha=1.0, beta=0.25, flops=1.0, slowdown={2: 3.0})
    ranks = (0, 1, 2, 3)
    log = [Compute(flops=10), collective(0, ranks), Wait(id=0)]
    timeline = replay([log] * 4, fabric)
    ring_s = cost.ring_all_reduce_time_s(8, 4, 1.0, 0.25)
    assert timeline.step_s == 30 + ring_s
    assert [rank.compute_s for rank in timeline.ranks] == [10, 10, 30, 10]
    assert [rank.waiting_s for rank in timeline.ranks] == [20, 20, 0, 20]
    assert [rank.idle_s for rank in timeline.ranks] == [20, 20, 0, 20]
    assert all(rank.exposed_communication_s == ring_s for rank in timeline.ranks)


def gpipe_logs(stages, micro_batches, forward=1.0, backward=2.0):
    """All forwards, then all backwards in reverse; sends are never waited for at once."""
    logs = []
    for stage in range(stages):
        events, count = [], 0

        def receive(peer, events=events):
            nonlocal count
            events += [message(count, "recv", peer, stages), Wait(id=count)]
            count += 1

        def send(peer, events=events):
            nonlocal count
            events.append(message(count, "send", peer, stages))
            count += 1

        for micro_batch in range(micro_batches):
            if stage > 0:
                receive(stage - 1)
            events += [Mark(name=f"F{micro_batch}"), Compute(flops=forward)]
            if stage < stages - 1:
                send(stage + 1)
        for micro_batch in reversed(range(micro_batches)):
            if stage < stages - 1:
                receive(stage + 1)
            events += [Mark(name=f"B{micro_batch}"), Compute(flops=backward)]
            if stage > 0:
                send(stage - 1)
        logs.append(events)
    return logs


@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 8), (1, 3), (2, 1), (3, 5)])
def test_the_bubble_of_gpipe(stages, micro_batches):
    free = Fabric(alpha=0.0, beta=0.0, flops=1.0)
    timeline = replay(gpipe_logs(stages, micro_batches), free)
    ideal_s = 3.0 * micro_batches
    assert timeline.step_s == 3.0 * (micro_batches + stages - 1)
    for rank in timeline.ranks:
        assert rank.compute_s == ideal_s
        assert rank.exposed_communication_s == 0
        assert rank.idle_s / ideal_s == (stages - 1) / micro_batches
    bubble = (stages - 1) / (micro_batches + stages - 1)
    assert timeline.bubble == pytest.approx(bubble, rel=1e-12, abs=1e-15)  # 1 − 1 for one stage


def test_the_bubble_of_four_stages_and_eight_micro_batches_is_3_11_of_the_step():
    timeline = replay(gpipe_logs(4, 8), Fabric(alpha=0.0, beta=0.0, flops=1.0))
    assert timeline.bubble == close(3 / 11)
    assert timeline.ranks[0].idle_s / timeline.ranks[0].compute_s == 3 / 8
    bars = [span for span in timeline.spans if span.rank == 3 and span.lane == COMPUTE]
    assert [span.label for span in bars][:3] == ["F0", "F1", "F2"]
    assert [span.start_s for span in bars][:3] == [3, 4, 5]


def test_a_fabric_checks_its_numbers():
    with pytest.raises(ValueError, match="got -1, 0 and 1"):
        Fabric(alpha=-1, beta=0, flops=1)
    with pytest.raises(ValueError, match="got 0, 0 and 0"):
        Fabric(alpha=0, beta=0, flops=0)
    with pytest.raises(ValueError, match='"butterfly" is not one of'):
        Fabric(alpha=0, beta=0, flops=1, algorithm="butterfly")
