"""Replay in virtual time against times worked out by hand.

Oracles: closed forms of labkit.cost.collectives for rings and trees written as messages; sums
written out in the test for overlap, stragglers and pipelines. Times are exact up to the rounding of
a few float additions: 1e-12 relative; equal where the numbers are whole.
"""

import pytest
import torch
import torch.distributed as dist

from labkit.cost import collectives as cost
from labkit.launch import run_ranks
from labkit.measure.events import Compute, Launch, Mark, Wait
from labkit.measure.fabric import Fabric, replay
from labkit.measure.log import EventLog
from labkit.measure.timeline import COMMUNICATION, COMPUTE

ALPHA, BETA = 3e-6, 2e-10
PLAIN = Fabric(alpha=ALPHA, beta=BETA, flops=1e12)
UNIT = Fabric(alpha=1.0, beta=0.25, flops=1.0)  # easy to add up by hand


def close(value):
    return pytest.approx(value, rel=1e-12, abs=0)


def collective(number, ranks, operation="all_reduce", size=8, axis="dp", peer=None):
    return Launch(id=number, operation=operation, axis=axis, ranks=ranks, bytes=size, peer=peer)


def message(number, operation, peer, world_size, size=0):
    ranks = tuple(range(world_size))
    return Launch(id=number, operation=operation, axis="pp", ranks=ranks, bytes=size, peer=peer)


def ring_log(rank, world_size, chunk_bytes):
    """2(N−1) steps; each sends a chunk to the next rank and waits for one from the previous."""
    events = []
    for step in range(2 * (world_size - 1)):
        to, source = (rank + 1) % world_size, (rank - 1) % world_size
        events.append(message(2 * step, "send", to, world_size, chunk_bytes))
        events.append(message(2 * step + 1, "recv", source, world_size, chunk_bytes))
        events += [Wait(id=2 * step), Wait(id=2 * step + 1)]
    return events


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 13])
def test_a_ring_of_messages_takes_what_the_closed_form_says(size):
    payload = 4096 * size
    by_hand = replay([ring_log(rank, size, 4096) for rank in range(size)], PLAIN)
    closed = cost.ring_all_reduce_time_s(payload, size, ALPHA, BETA)
    assert by_hand.step_s == close(closed)
    ranks = tuple(range(size))
    as_one = replay([[collective(0, ranks, size=payload), Wait(id=0)]] * size, PLAIN)
    assert as_one.step_s == close(closed)
    assert all(rank.exposed_communication_s == close(closed) for rank in as_one.ranks)


def test_a_tree_of_messages_takes_what_the_closed_form_says():
    def send(number, peer):
        return [message(number, "send", peer, 5, 640), Wait(id=number)]

    receive = {1: 0, 2: 0, 3: 1, 4: 0}  # child: parent; parents serve the far children last
    logs = [send(0, 1) + send(1, 2) + send(2, 4)]
    logs += [[message(0, "recv", receive[rank], 5, 640), Wait(id=0)] for rank in range(1, 5)]
    logs[1] += send(1, 3)
    closed = cost.tree_broadcast_time_s(640, 5, ALPHA, BETA)
    assert replay(logs, PLAIN).step_s == close(closed)
    as_one = [[collective(0, tuple(range(5)), "broadcast", 640, peer=0), Wait(id=0)]] * 5
    assert replay(as_one, PLAIN).step_s == close(closed)


@pytest.mark.parametrize(
    ("operation", "formula"),
    [
        ("reduce_scatter", cost.ring_reduce_scatter_time_s),
        ("all_gather", cost.ring_all_gather_time_s),
        ("all_to_all", cost.pairwise_all_to_all_time_s),
        ("broadcast", cost.tree_broadcast_time_s),
        ("reduce", cost.tree_broadcast_time_s),
        ("gather", cost.tree_gather_time_s),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_every_collective_takes_its_closed_form(operation, formula, size):
    ranks = tuple(range(size))
    log = [collective(0, ranks, operation, 960), Wait(id=0)]
    assert replay([log] * size, PLAIN).step_s == close(formula(960, size, ALPHA, BETA))


def test_a_scatter_is_a_gather_backwards_and_a_barrier_is_a_tree_of_nothing():
    ranks = (0, 1, 2, 3)
    pieces = [collective(0, ranks, "scatter", size, peer=0) for size in (400, 100, 100, 100)]
    scatter = replay([[piece, Wait(id=0)] for piece in pieces], PLAIN)
    assert scatter.step_s == close(cost.tree_gather_time_s(100, 4, ALPHA, BETA))
    barrier = replay([[collective(0, ranks, "barrier", 0), Wait(id=0)]] * 4, PLAIN)
    assert barrier.step_s == close(2 * ALPHA)


def test_the_algorithm_of_an_all_reduce_is_a_choice():
    crossover = cost.ring_tree_crossover_bytes(64, ALPHA, BETA)
    ranks = tuple(range(64))
    for payload in (round(0.9 * crossover), round(1.1 * crossover)):
        log = [collective(0, ranks, size=payload), Wait(id=0)]
        ring, tree, cheaper = (
            replay([log] * 64, Fabric(alpha=ALPHA, beta=BETA, flops=1, algorithm=name)).step_s
            for name in ("ring", "tree", "cheaper")
        )
        assert ring == close(cost.ring_all_reduce_time_s(payload, 64, ALPHA, BETA))
        assert tree == close(cost.tree_all_reduce_time_s(payload, 64, ALPHA, BETA))
        assert cheaper == min(ring, tree)
        assert (ring < tree) == (payload > crossover)


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


def test_transfers_of_one_rank_queue_for_its_links():
    # Launched together: the second starts when the first ends, and both are exposed, not waiting.
    ranks = (0, 1)
    log = [collective(0, ranks), collective(1, ranks, axis="tp"), Wait(id=1), Wait(id=0)]
    timeline = replay([log, log], UNIT)
    assert timeline.step_s == 8
    assert timeline.ranks[0].exposed_communication_s == 8
    assert [(span.label, span.start_s) for span in timeline.spans if span.rank == 1] == [
        ("all_reduce dp", 0),
        ("all_reduce tp", 4),
    ]


def test_groups_without_a_common_rank_do_not_queue():
    logs = [[collective(0, ranks), Wait(id=0)] for ranks in ((0, 1), (0, 1), (2, 3), (2, 3))]
    assert replay(logs, UNIT).step_s == 4


def test_a_rank_sends_and_receives_at_the_same_time_but_sends_one_by_one():
    both = [message(0, "send", 1, 3, 8), message(1, "recv", 1, 3, 8), Wait(id=0), Wait(id=1)]
    other = [message(0, "send", 0, 3, 8), message(1, "recv", 0, 3, 8), Wait(id=0), Wait(id=1)]
    assert replay([both, other, []], UNIT).step_s == 3
    fan_out = [message(0, "send", 1, 3, 8), message(1, "send", 2, 3, 8), Wait(id=0), Wait(id=1)]
    receive = [message(0, "recv", 0, 3, 8), Wait(id=0)]
    assert replay([fan_out, receive, receive], UNIT).step_s == 6


def test_messages_of_a_pair_match_in_order():
    sends = [message(0, "send", 1, 2, 4), message(1, "send", 1, 2, 400), Wait(id=0), Wait(id=1)]
    receives = [message(0, "recv", 0, 2, 4), Wait(id=0), Mark(name="first")]
    receives += [message(1, "recv", 0, 2, 400), Wait(id=1)]
    timeline = replay([sends, receives], UNIT)
    assert [mark.time_s for mark in timeline.marks] == [2]
    assert timeline.step_s == 2 + 101


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


def test_a_group_on_two_nodes_goes_at_the_pace_of_the_slow_link():
    fast, slow = (1e-6, 1e-11), (1e-5, 1e-9)
    fabric = Fabric.of_nodes(4, intra=fast, inter=slow, flops=1.0)

    def step_s(ranks, operation="all_reduce"):
        logs = [[] for _ in range(8)]
        for rank in ranks:
            logs[rank] = [collective(0, ranks, operation, 800), Wait(id=0)]
        return replay(logs, fabric).step_s

    assert step_s((4, 5, 6, 7)) == close(cost.ring_all_reduce_time_s(800, 4, *fast))
    assert step_s((0, 4)) == close(cost.ring_all_reduce_time_s(800, 2, *slow))
    whole = tuple(range(8))
    assert step_s(whole) == close(cost.ring_all_reduce_time_s(800, 8, *slow))
    assert step_s(whole, "all_to_all") == close(cost.pairwise_all_to_all_time_s(800, 8, *slow))
    assert step_s((0, 1, 2, 3), "broadcast") == close(cost.tree_broadcast_time_s(800, 4, *fast))


def test_a_link_of_its_own_slows_only_the_messages_over_it():
    fabric = Fabric(
        alpha=1.0,
        beta=0.25,
        flops=1.0,
        link=lambda source, target: (9.0, 0.25) if (source, target) == (0, 1) else (1.0, 0.25),
    )
    send, receive = (
        [[message(0, name, peer, 2, 4), Wait(id=0)] for peer in (1, 0)] for name in ("send", "recv")
    )
    assert replay([send[0], receive[1]], fabric).step_s == 10
    assert replay([receive[0], send[1]], fabric).step_s == 2


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


@pytest.mark.parametrize("world_size", [0, 1, 3])
def test_empty_logs_take_no_time(world_size):
    timeline = replay([[] for _ in range(world_size)], PLAIN)
    assert timeline.step_s == 0
    assert timeline.bubble == 0
    assert len(timeline.ranks) == world_size
    assert timeline.spans == ()


def test_a_world_of_one_communicates_for_nothing():
    log = [Compute(flops=7), collective(0, (0,), size=800), Wait(id=0), Compute(flops=1)]
    assert replay([log], UNIT).step_s == 8


def test_a_transfer_that_nobody_waits_for_still_counts():
    log = [collective(0, (0, 1)), Compute(flops=1)]
    timeline = replay([log, log], UNIT)
    assert timeline.step_s == 4
    assert timeline.ranks[0].finish_s == 1
    assert timeline.ranks[0].idle_s == 3


def test_the_three_states_fill_every_rank_up_to_the_end_of_its_log():
    timeline = replay(gpipe_logs(4, 8), UNIT)
    for rank in timeline.ranks:
        parts = rank.compute_s + rank.exposed_communication_s + rank.waiting_s
        assert parts == close(rank.finish_s)
    again = replay(gpipe_logs(4, 8), UNIT)
    assert again == timeline


def test_a_span_lies_in_its_lane_and_a_table_says_virtual():
    log = [Mark(name="backward"), Compute(flops=2), collective(0, (0, 1)), Wait(id=0)]
    timeline = replay([log, log], UNIT)
    first = [span for span in timeline.spans if span.rank == 0]
    assert [(span.lane, span.start_s, span.end_s, span.label) for span in first] == [
        (COMPUTE, 0, 2, "backward"),
        (COMMUNICATION, 2, 6, "all_reduce dp"),
    ]
    lines = timeline.table().splitlines()
    assert lines[0] == "virtual time, step 6 s"
    assert lines[2].split() == ["0", "2", "4", "0", "0", "0"]


def test_two_ranks_that_both_send_first_hang():
    logs = [
        [message(0, "send", 1, 2, 8), Wait(id=0), message(1, "recv", 1, 2, 8), Wait(id=1)],
        [message(0, "send", 0, 2, 8), Wait(id=0), message(1, "recv", 0, 2, 8), Wait(id=1)],
    ]
    told = (
        "rank 0 waits for launch 0, send of 8 bytes with rank 1 on pp, that rank 1 did not launch\n"
        "rank 1 waits for launch 0, send of 8 bytes with rank 0 on pp, that rank 0 did not launch"
    )
    with pytest.raises(ValueError, match=told):
        replay(logs, UNIT)


def test_a_missing_rank_hangs_the_others():
    log = [collective(0, (0, 1, 2)), Wait(id=0)]
    with pytest.raises(ValueError, match=r"rank 1 waits for launch 0.*that rank 2 did not launch"):
        replay([log, log, []], UNIT)


def test_a_launch_without_partner_is_refused_though_nobody_waits():
    with pytest.raises(ValueError, match=r"rank 0 never waits for launch 0.*rank 1 did not launch"):
        replay([[collective(0, (0, 1))], []], UNIT)


def test_calls_that_do_not_match_are_named():
    logs = [[collective(0, (0, 1)), Wait(id=0)], [collective(0, (0, 1), "broadcast", peer=0)]]
    with pytest.raises(ValueError, match=r"call 0 is broadcast of 8 .* rank 1, all_reduce of 8"):
        replay(logs, UNIT)
    logs = [[message(0, "send", 1, 2, 8)], [message(0, "recv", 0, 2, 16)]]
    with pytest.raises(ValueError, match=r"recv of 16 bytes .* rank 1, send of 8 bytes"):
        replay(logs, UNIT)


def test_impossible_logs_are_refused():
    with pytest.raises(ValueError, match="rank 0 waits for 3, never launched"):
        replay([[Wait(id=3)]], UNIT)
    with pytest.raises(ValueError, match=r"ranks \(0, 5\): there are 2 logs"):
        replay([[collective(0, (0, 5))], []], UNIT)
    with pytest.raises(ValueError, match="rank 0 cannot send with peer 0"):
        replay([[message(0, "send", 0, 2)], []], UNIT)
    with pytest.raises(ValueError, match="no collective"):
        replay([[collective(0, (0,), "rotate")]], UNIT)


def test_a_fabric_checks_its_numbers():
    with pytest.raises(ValueError, match="got -1, 0 and 1"):
        Fabric(alpha=-1, beta=0, flops=1)
    with pytest.raises(ValueError, match="got 0, 0 and 0"):
        Fabric(alpha=0, beta=0, flops=0)
    with pytest.raises(ValueError, match='"butterfly" is not one of'):
        Fabric(alpha=0, beta=0, flops=1, algorithm="butterfly")
