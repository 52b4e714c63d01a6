"""The schedules as data: which actions, in which order, how much held, what is legal.

Promised: for every legal p in 1 … 6 and m in 1 … 12, each micro-batch passes each stage once; what
a rank holds at once reaches the papers' bound and does not exceed it; every illegal pair is refused
with both numbers. Oracles: rows written out by hand, counting, and the closed forms of
labkit.cost.pipeline. torch's own tables are compared in tests/peers.
"""

import re
from collections import Counter

import pytest

from labkit.cost import pipeline as cost
from labkit.parallel.pipeline import (
    LEGALITY,
    Action,
    Schedule,
    dual_pipe_v,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    validate,
    why_illegal,
    zero_bubble,
    zero_bubble_v,
)

MAKERS = [naive, gpipe, one_f_one_b, interleaved, zero_bubble, zero_bubble_v, dual_pipe_v]
RANKS, MICRO_BATCHES = range(1, 7), range(1, 13)


def legal(make):
    name = make.__name__
    return [(p, m) for p in RANKS for m in MICRO_BATCHES if not why_illegal(name, p, m)]


def rows(schedule):
    return [row.split(": ")[1] for row in schedule.rows()]


def test_rows_of_the_papers_figures():
    assert rows(naive(2, 2)) == ["F0 B0 F1 B1"] * 2
    assert rows(gpipe(2, 3)) == ["F0 F1 F2 B0 B1 B2"] * 2
    assert rows(one_f_one_b(3, 4)) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    assert rows(interleaved(2, 4)) == [
        "F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3",
        "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3",
    ]
    assert rows(zero_bubble(3, 3)) == [
        "F0 F1 F2 I0 W0 I1 W1 I2 W2",
        "F0 F1 I0 F2 I1 W0 I2 W1 W2",
        "F0 I0 F1 I1 F2 I2 W0 W1 W2",
    ]
    assert rows(zero_bubble_v(1, 1)) == ["F0 F0.1 I0.1 W0.1 I0 W0"]
    assert rows(dual_pipe_v(1, 2)) == ["F0 F0.1 F1 B0.1 F1.1 B0 B1.1 I1 W1"]


def test_where_stages_lie():
    loop, v = interleaved(3, 3), zero_bubble_v(3, 3)
    assert [[loop.stage(rank, chunk) for chunk in (0, 1)] for rank in range(3)] == [
        [0, 3],
        [1, 4],
        [2, 5],
    ]
    assert [[v.stage(rank, chunk) for chunk in (0, 1)] for rank in range(3)] == [
        [0, 5],
        [1, 4],
        [2, 3],
    ]
    for schedule in (loop, v):
        for stage in range(schedule.num_stages):
            rank, chunk = schedule.rank_of(stage), schedule.chunk_of(stage)
            assert schedule.stage(rank, chunk) == stage


def test_what_an_action_takes_and_gives():
    schedule = zero_bubble_v(2, 3)  # stages 0 and 3 on rank 0, 1 and 2 on rank 1
    taken = [schedule.stage_before(1, Action(kind, 0, 1)) for kind in "FBIW"]
    given = [schedule.stage_after(1, Action(kind, 0, 1)) for kind in "FBIW"]
    assert (taken, given) == ([1, 3, 3, None], [3, 1, 1, None])
    assert schedule.stage_before(0, Action("F", 0)) is None
    assert schedule.stage_before(0, Action("I", 0, 1)) is None
    assert schedule.stage_after(0, Action("F", 0, 1)) is None
    assert schedule.stage_after(0, Action("B", 0)) is None
    assert schedule.inputs(1, Action("I", 2, 1)) == [("F", 2, 2), ("B", 3, 2)]
    assert schedule.inputs(0, Action("I", 2, 1)) == [("F", 3, 2)]
    assert schedule.inputs(0, Action("F", 2)) == []
    assert schedule.result(0, Action("W", 2)) is None


@pytest.mark.parametrize("make", MAKERS)
def test_each_micro_batch_passes_each_stage_once(make):
    pairs = legal(make)
    assert len(pairs) >= 12
    for p, m in pairs:
        schedule = make(p, m)
        assert (schedule.num_ranks, schedule.num_micro_batches) == (p, m)
        assert schedule.name == make.__name__
        validate(schedule)
        counts = Counter(
            (action.kind, schedule.stage(rank, action.chunk))
            for rank, row in enumerate(schedule.ranks)
            for action in row
        )
        for stage in range(schedule.num_stages):
            assert counts["F", stage] == m
            assert counts["B", stage] + counts["I", stage] == m
            assert counts["W", stage] == counts["I", stage]


@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_interleaved_takes_any_number_of_chunks(chunks):
    for p, m in legal(interleaved):
        schedule = interleaved(p, m, chunks)
        validate(schedule)
        for rank in range(p):
            assert schedule.peak_stash(rank) == cost.interleaved_in_flight(p, m, rank, chunks)


@pytest.mark.parametrize("p", RANKS)
def test_what_is_held_at_once(p):
    for m in MICRO_BATCHES:
        peaks = {
            make.__name__: list(map(make(p, m).peak_stash, range(p)))
            for make in MAKERS
            if not why_illegal(make.__name__, p, m)
        }
        assert peaks["naive"] == [1] * p
        assert peaks["gpipe"] == [cost.gpipe_in_flight(m)] * p
        assert peaks["one_f_one_b"] == [cost.one_f_one_b_in_flight(p, m, r) for r in range(p)]
        assert max(peaks["zero_bubble"]) == cost.zero_bubble_h1_in_flight(p, m)
        assert max(peaks["zero_bubble_v"]) == cost.zero_bubble_v_in_flight(p, m)
        assert peaks.get("dual_pipe_v", [2 * p + 1] * p) == [cost.dual_pipe_v_in_flight(p)] * p
        if m >= 2 * p:
            assert peaks["zero_bubble"] == [p] * p
            assert peaks["zero_bubble_v"] == [2 * p] * p


def test_1f1b_holds_what_gpipe_holds_only_on_its_first_rank_and_only_up_to_p():
    assert [one_f_one_b(4, 8).peak_stash(rank) for rank in range(4)] == [4, 3, 2, 1]
    assert [gpipe(4, 8).peak_stash(rank) for rank in range(4)] == [8, 8, 8, 8]


def test_the_legality_table_is_what_the_schedules_do():
    assert set(LEGALITY) == {make.__name__ for make in MAKERS}
    for make in MAKERS:
        for p in range(6):
            for m in range(9):
                why = why_illegal(make.__name__, p, m)
                if why is None:
                    make(p, m)
                    continue
                with pytest.raises(ValueError, match=re.escape(why)) as refused:
                    make(p, m)
                assert str(refused.value) == why
                assert str(p) in why
                assert str(m) in why


def test_legal_pairs_of_the_labs():
    """p in 1 … 4, m in {1, 2, 3, 4, 5, 8}: 24 pairs."""
    pairs = [(p, m) for p in (1, 2, 3, 4) for m in (1, 2, 3, 4, 5, 8)]
    count = {name: sum(not why_illegal(name, p, m) for p, m in pairs) for name in LEGALITY}
    free = dict.fromkeys(["naive", "gpipe", "one_f_one_b", "zero_bubble", "zero_bubble_v"], 24)
    assert count == free | {"interleaved": 12, "dual_pipe_v": 10}


@pytest.mark.parametrize(
    ("make", "asked", "match"),
    [
        (gpipe, (0, 4), "gpipe with 4 micro-batches on 0 ranks: it needs at least 1 of each"),
        (naive, (2, 0), "0 micro-batches on 2 ranks"),
        (one_f_one_b, (2, -1), "-1 micro-batches on 2 ranks"),
        (interleaved, (4, 6), "6 micro-batches on 4 ranks: .* multiple of 4; .* one_f_one_b"),
        (interleaved, (2, 4, 1), "1 chunks a rank: it takes 2 to more"),
        (dual_pipe_v, (4, 7), "7 micro-batches on 4 ranks: .* at least 8; .* zero_bubble_v"),
    ],
)
def test_refused_with_both_numbers_and_the_way_out(make, asked, match):
    with pytest.raises(ValueError, match=match):
        make(*asked)


def test_a_schedule_is_a_value():
    assert gpipe(2, 3) == gpipe(2, 3)
    assert hash(Action("F", 1)) == hash(Action("F", 1, 0))
    with pytest.raises(AttributeError):
        Action("F", 1).chunk = 2
    with pytest.raises(TypeError):
        Schedule("gpipe", 1, "loop", 1, ())
