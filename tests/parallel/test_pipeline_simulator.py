"""The simulator: bubbles and step times are the papers', for every legal p and m.

Promised: times equal a clock that is stepped second by second, for random whole durations; bubbles
equal the papers' formulas, by both definitions; zero bubble's gain over 1F1B, and the condition on
which ZB-V has no bubble, come out as published; 64 ranks with 512 micro-batches take less than 2 s.
Durations are whole numbers, so times are exact; shares are compared to 1e-12.
"""

import random
import time
from dataclasses import replace

import pytest

from labkit.cost import pipeline as cost
from labkit.parallel.pipeline import (
    Action,
    dual_pipe_v,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    simulate_schedule,
    why_illegal,
    zero_bubble,
    zero_bubble_v,
)

MAKERS = [naive, gpipe, one_f_one_b, interleaved, zero_bubble, zero_bubble_v, dual_pipe_v]
PAIRS = [(p, m) for p in (1, 2, 3, 4) for m in (1, 2, 3, 4, 5, 8)]
MORE = [(p, m) for p in (1, 2, 3, 4, 6) for m in (1, 2, 3, 4, 5, 6, 8, 12, 13)]


def legal(make, pairs=MORE):
    return [pair for pair in pairs if not why_illegal(make.__name__, *pair)]


def close(value):
    return pytest.approx(value, rel=1e-12)


def bubble_s(timeline):
    return timeline.step_s - timeline.ideal_s


def durations(generator, most=5):
    forward, gradient, weight = (generator.randint(1, most) for _ in range(3))
    return dict(forward_s=forward, input_s=gradient, weight_s=weight, backward_s=gradient + weight)


def stepped(schedule, seconds, message_s):
    """(start, end) of each action of each rank, by a clock that goes on by one second."""
    ended = {}
    spans = [[] for _ in schedule.ranks]
    now = 0
    while any(len(s) < len(row) for s, row in zip(spans, schedule.ranks, strict=True)):
        for rank, row in enumerate(schedule.ranks):
            if len(spans[rank]) == len(row) or (spans[rank] and spans[rank][-1][1] > now):
                continue
            action = row[len(spans[rank])]
            stage, i = schedule.stage(rank, action.chunk), action.micro_batch
            last = schedule.num_stages - 1
            needs = {"F": [("F", stage - 1)], "W": [("B", stage)]}.get(
                action.kind, [("F", stage), ("B", stage + 1)]
            )
            if all(
                not 0 <= other <= last
                or ended.get((kind, other, i), 10**9)
                + message_s * (schedule.rank_of(other) != rank)
                <= now
                for kind, other in needs
            ):
                end = now + seconds[action.kind]
                spans[rank].append((now, end))
                kind = "B" if action.kind in "BI" else action.kind
                ended[kind, stage, i] = end
        now += 1
    return spans


@pytest.mark.parametrize("make", MAKERS)
def test_times_are_those_of_a_stepped_clock(make):
    generator = random.Random(0)
    for p, m in legal(make, PAIRS):
        some, message_s = durations(generator, 3), generator.randint(0, 3)
        timeline = simulate_schedule(make(p, m), **some, message_s=message_s)
        seconds = {kind: some[f"{name}_s"] for kind, name in NAMES.items()}
        expected = stepped(make(p, m), seconds, message_s)
        found = [[(span.start_s, span.end_s) for span in spans] for spans in timeline.ranks]
        assert found == expected, (p, m, some, message_s)


NAMES = {"F": "forward", "B": "backward", "I": "input", "W": "weight"}


def test_a_timeline_by_hand():
    """1F1B, two ranks, two micro-batches, a backward twice a forward: the figure of the chapter."""
    timeline = simulate_schedule(one_f_one_b(2, 2))
    spans = [[(str(s.action), s.start_s, s.end_s) for s in spans] for spans in timeline.ranks]
    assert spans == [
        [("F0", 0, 1), ("F1", 1, 2), ("B0", 4, 6), ("B1", 7, 9)],
        [("F0", 1, 2), ("B0", 2, 4), ("F1", 4, 5), ("B1", 5, 7)],
    ]
    assert (timeline.makespan_s, timeline.step_s, timeline.ideal_s) == (9, 9, 6)
    assert (timeline.idle_s(0), timeline.idle_s(1)) == (3, 0)
    assert (timeline.bubble_over_ideal, timeline.bubble_over_step) == (0.5, close(1 / 3))
    assert timeline.peak_stash == (2, 1)


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
def test_gpipe_and_1f1b_idle_alike(make):
    generator = random.Random(2)
    for p, m in legal(make):
        timeline = simulate_schedule(make(p, m), **durations(generator))
        assert timeline.bubble_over_ideal == close((p - 1) / m)
        assert timeline.bubble_over_step == close((p - 1) / (m + p - 1))
        assert timeline.makespan_s == timeline.step_s


def test_naive_uses_one_rank_at_a_time():
    generator = random.Random(3)
    for p, m in legal(naive):
        timeline = simulate_schedule(naive(p, m), **durations(generator))
        assert timeline.bubble_over_ideal == close(p - 1)
        assert timeline.bubble_over_step == close((p - 1) / p)


@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_interleaving_divides_the_bubble_by_the_chunks(chunks):
    generator = random.Random(4)
    for p, m in legal(interleaved):
        timeline = simulate_schedule(interleaved(p, m, chunks), **durations(generator))
        assert timeline.bubble_over_ideal == close((p - 1) / (chunks * m))


def test_zb_h1_saves_two_thirds_of_the_bubble_of_1f1b_at_the_same_memory():
    for p, m in legal(zero_bubble):
        if m < p:
            continue
        ours = simulate_schedule(zero_bubble(p, m))
        theirs = simulate_schedule(one_f_one_b(p, m))  # t_B = 2 = t_I + t_W
        assert bubble_s(ours) == p - 1
        assert bubble_s(theirs) == 3 * (p - 1)
        assert max(ours.peak_stash) == max(theirs.peak_stash)


def test_zb_h1_for_any_durations_with_a_short_w():
    generator = random.Random(5)
    compared = 0
    for _ in range(300):
        p, some = generator.randint(1, 5), durations(generator)
        t_f, t_i, t_w = some["forward_s"], some["input_s"], some["weight_s"]
        if t_w > min(t_f, t_i):
            continue
        timeline = simulate_schedule(zero_bubble(p, p + generator.randint(0, 4)), **some)
        assert bubble_s(timeline) == cost.zero_bubble_h1_bubble_s(p, t_f, t_i, t_w)
        compared += 1
    assert compared > 60


def test_zb_v_has_no_bubble_on_equal_thirds_only():
    for p, m in legal(zero_bubble_v):
        timeline = simulate_schedule(zero_bubble_v(p, m), forward_s=3, input_s=3, weight_s=3)
        assert bubble_s(timeline) == cost.zero_bubble_v_bubble_s(p, m, 3)
        if m >= 2 * p - 1:
            assert bubble_s(timeline) == 0
            assert [timeline.idle_s(rank) for rank in range(p)] == [0] * p
            uneven = simulate_schedule(zero_bubble_v(p, m), forward_s=3, input_s=3, weight_s=2)
            assert bubble_s(uneven) == 2 * (p - 1)


def test_dual_pipe_v_without_overlap():
    for p, m in legal(dual_pipe_v):
        for t, t_w in [(1, 1), (3, 2), (4, 1)]:
            timeline = simulate_schedule(
                dual_pipe_v(p, m), forward_s=t, input_s=t, weight_s=t_w, backward_s=t + t_w
            )
            assert bubble_s(timeline) == (p - 1) * (2 * t - t_w)


def test_no_step_is_shorter_than_its_longest_chain():
    """One micro-batch goes through all stages and back; a rank must do all its work."""
    for make in MAKERS:
        for p, m in legal(make):
            schedule = make(p, m)
            timeline = simulate_schedule(schedule)
            assert timeline.makespan_s >= 2 * schedule.num_stages
            assert timeline.step_s >= timeline.ideal_s
            assert timeline.ideal_s == m * schedule.num_stages_per_rank * 3


def test_messages_take_time_only_between_ranks():
    for p, m in legal(gpipe):
        timeline = simulate_schedule(gpipe(p, m), message_s=5)
        assert timeline.makespan_s == 3 * (m + p - 1) + 2 * (p - 1) * 5
    alone = simulate_schedule(zero_bubble_v(1, 3), message_s=100)
    assert bubble_s(alone) == 0


def test_a_schedule_that_never_ends_is_refused_with_the_reason():
    row = (Action("B", 0), Action("F", 0))
    with pytest.raises(ValueError, match="rank 1 runs B0 before the forward of stage 1"):
        simulate_schedule(replace(gpipe(2, 1), ranks=(gpipe(2, 1).ranks[0], row)))
    with pytest.raises(ValueError, match=r"2 ranks, no actions on ranks \[1\]"):
        simulate_schedule(replace(gpipe(2, 1), ranks=(gpipe(2, 1).ranks[0], ())))
    with pytest.raises(ValueError, match=r"must not be negative, got .*'F': -1"):
        simulate_schedule(gpipe(2, 1), forward_s=-1)
    with pytest.raises(ValueError, match=r"'message': -2"):
        simulate_schedule(gpipe(2, 1), message_s=-2)


def test_64_ranks_with_512_micro_batches_in_two_seconds():
    schedule = zero_bubble(64, 512)  # 98 304 actions
    started_s = time.process_time()
    timeline = simulate_schedule(schedule)
    assert time.process_time() - started_s < 2
    assert bubble_s(timeline) == 63
