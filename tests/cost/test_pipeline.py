"""Costs of pipelines: closed forms against schedules that are simulated and counted.

Promised: bubbles, micro-batches in flight and bytes are those of the schedules of
labkit.parallel.pipeline, and the published examples come out. Oracles: the simulator, which knows
no formula, and messages counted one by one. DualPipeV's bubble is its authors', where a forward and
a backward run as one: such pairs are fused here and stepped through.
"""

import pytest

from labkit.cost import pipeline as cost
from labkit.parallel.pipeline import (
    dual_pipe_v,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    simulate_schedule,
    zero_bubble,
    zero_bubble_v,
)

RANKS = (1, 2, 3, 4, 6)


def close(value):
    return pytest.approx(value, rel=1e-12)


def bubble_s(schedule, **durations):
    timeline = simulate_schedule(schedule, **durations)
    return timeline.step_s - timeline.ideal_s


@pytest.mark.parametrize("p", RANKS)
def test_bubbles_are_those_of_the_simulator(p):
    for m in (1, 2, 3, 5, 8, 12):
        assert bubble_s(naive(p, m)) == cost.naive_bubble_s(p, m, 3)
        for schedule in (gpipe(p, m), one_f_one_b(p, m), interleaved(p, m * p, 3)):
            assert bubble_s(schedule) == cost.fill_and_drain_bubble_s(p, 3)
        thirds = dict(forward_s=2, input_s=2, weight_s=2)
        assert bubble_s(zero_bubble_v(p, m), **thirds) == cost.zero_bubble_v_bubble_s(p, m, 2)
        uneven = bubble_s(zero_bubble_v(p, m + p), forward_s=5, input_s=5, weight_s=2)
        assert uneven == cost.zero_bubble_v_bubble_s(p, m + p, 5, 2)
        h1 = bubble_s(zero_bubble(p, m + p), forward_s=4, input_s=3, weight_s=2)
        assert h1 == cost.zero_bubble_h1_bubble_s(p, 4, 3, 2)


@pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 1), (2, 3, 2), (8, 32, 4), (1, 5, 1)])
def test_two_definitions_of_one_bubble(p, m, v):
    work = cost.work_s(m, 3.0, v)
    idle = cost.fill_and_drain_bubble_s(p, 3.0)
    over_ideal = cost.bubble_over_ideal(idle, work)
    assert over_ideal == close((p - 1) / (v * m))
    over_step = cost.bubble_over_step(idle, work)
    assert over_step == close((p - 1) / (v * m + p - 1))
    assert over_step == close(over_ideal / (1 + over_ideal))


def test_gpipes_advice_of_four_micro_batches_a_rank():
    """GPipe calls the bubble negligible from m = 4p on: a fifth of the step, at most."""
    for p in RANKS:
        idle, work = cost.fill_and_drain_bubble_s(p, 1.0), cost.work_s(4 * p, 1.0)
        assert cost.bubble_over_step(idle, work) < 1 / 5


def fused_pairs(schedule, rank):
    """DualPipeV's rank as units: an F and the B after it as one, as its authors run them."""
    p, m, row = schedule.num_ranks, schedule.num_micro_batches, schedule.ranks[rank]
    later = p - 1 - rank
    alone = 2 * later + 2 * (rank + 1) + 3 * later
    units = [(action,) for action in row[:alone]]
    turns = iter(row[alone:])
    for turn in range(2 * (m - 2 * p + 1 + rank)):
        pair = (next(turns), next(turns))
        first_of_the_last_rank = turn == 0 and rank == p - 1
        units += [(pair[0],), (pair[1],)] if first_of_the_last_rank else [pair]
    for _ in range(later):
        units += [(next(turns),), (next(turns), next(turns))]
    return units + [(action,) for action in turns]


def fused_bubble_s(schedule, seconds):
    units = [fused_pairs(schedule, rank) for rank in range(schedule.num_ranks)]
    ready, at, clock = {}, [0] * len(units), [0] * len(units)
    start = [None] * len(units)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(units):
            while at[rank] < len(row):
                unit = row[at[rank]]
                needs = {need for action in unit for need in schedule.inputs(rank, action)}
                needs -= {schedule.result(rank, action) for action in unit}
                if not needs <= set(ready):
                    break
                begin = max([clock[rank], *(ready[need] for need in needs)])
                start[rank] = begin if start[rank] is None else start[rank]
                clock[rank] = begin + sum(seconds[action.kind] for action in unit)
                ready |= {schedule.result(rank, action): clock[rank] for action in unit}
                at[rank] += 1
                moved = True
    assert at == [len(row) for row in units]
    work = 2 * schedule.num_micro_batches * (seconds["F"] + seconds["B"])
    return max(end - begin for begin, end in zip(start, clock, strict=True)) - work


@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize(("t", "t_w"), [(1, 1), (2, 1), (3, 2)])
def test_dual_pipe_vs_published_bubble(p, t, t_w):
    seconds = {"F": t, "B": t + t_w, "I": t, "W": t_w}
    expected = cost.dual_pipe_v_bubble_s(p, seconds["F"] + seconds["B"], seconds["B"], t_w)
    assert fused_bubble_s(dual_pipe_v(p, 2 * p + 3), seconds) == expected


@pytest.mark.parametrize("p", RANKS)
def test_in_flight_is_what_the_schedules_hold(p):
    for m in (1, 2, 3, 5, 8, 12):
        for rank in range(p):
            assert gpipe(p, m).peak_stash(rank) == cost.gpipe_in_flight(m)
            held = one_f_one_b(p, m).peak_stash(rank)
            assert held == cost.one_f_one_b_in_flight(p, m, rank)
            held = interleaved(p, m * p, 2).peak_stash(rank)
            assert held == cost.interleaved_in_flight(p, m * p, rank, 2)
        fullest = max(map(zero_bubble(p, m).peak_stash, range(p)))
        assert fullest == cost.zero_bubble_h1_in_flight(p, m)
        fullest = max(map(zero_bubble_v(p, m).peak_stash, range(p)))
        assert fullest == cost.zero_bubble_v_in_flight(p, m)
    held = set(map(dual_pipe_v(p, 2 * p + 1).peak_stash, range(p)))
    assert held == {cost.dual_pipe_v_in_flight(p)}


@pytest.mark.parametrize(("p", "chunks"), [(1, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 3)])
def test_in_flight_by_chunk_is_what_comes_of_each_forward(p, chunks):
    """The largest counts of each schedule, gone through action by action."""
    for m in (p, 2 * p, 5 * p):
        schedule = interleaved(p, m, chunks) if chunks > 1 else one_f_one_b(p, m)
        for rank, row in enumerate(schedule.ranks):
            counts, moments = [0] * chunks, []
            for action in row:
                counts[action.chunk] += 1 if action.kind == "F" else -1
                if action.kind == "F":
                    moments.append(tuple(counts))
            told = cost.in_flight_by_chunk(p, m, rank, chunks)
            assert told == (moments if chunks > 1 else [max(moments)])


def counted_bytes(schedule, rank, boundary_bytes):
    """What leaves a rank, action by action."""
    after = [schedule.stage_after(rank, action) for action in schedule.ranks[rank]]
    leaving = [stage for stage in after if stage is not None and schedule.rank_of(stage) != rank]
    return boundary_bytes * len(leaving)


@pytest.mark.parametrize("p", RANKS)
def test_bytes_are_those_that_cross_a_boundary(p):
    m, size = 2 * p, 1000
    for rank in range(p):
        for schedule in (gpipe(p, m), one_f_one_b(p, m), zero_bubble(p, m)):
            assert counted_bytes(schedule, rank, size) == cost.loop_bytes_sent(p, m, size, rank)
        for chunks in (2, 3):
            sent = cost.loop_bytes_sent(p, m, size, rank, chunks)
            assert counted_bytes(interleaved(p, m, chunks), rank, size) == sent
        for schedule in (zero_bubble_v(p, m), dual_pipe_v(p, m)):
            assert counted_bytes(schedule, rank, size) == cost.v_bytes_sent(p, m, size, rank)


def test_all_ranks_together_send_two_messages_a_boundary_and_micro_batch():
    p, m, size = 4, 8, 10
    loop = sum(cost.loop_bytes_sent(p, m, size, rank, 2) for rank in range(p))
    v = sum(cost.v_bytes_sent(p, m, size, rank) for rank in range(p))
    assert (loop, v) == (2 * m * size * (2 * p - 1), 2 * m * size * 2 * (p - 1))
