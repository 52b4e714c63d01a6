"""The validator: legal schedules pass, and every fault planted in one is named.

Promised: an action missing, doubled, strange or too early, a circle of waiting ranks and too much
held each raise a ValueError that says where. Under the strictest exchange deadlocks are found just
where the literature has them: 1F1B with blocking sends, interleaved and V-shaped ones with sends
that must complete. Oracle for all of this: a slow machine that lets ranks act one at a time in
random order, and is stuck when nothing can move.
"""

import random
from dataclasses import replace

import pytest

from labkit.parallel.pipeline import (
    Action,
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
from labkit.parallel.pipeline.validator import deadlock, fault

MAKERS = [naive, gpipe, one_f_one_b, interleaved, zero_bubble, zero_bubble_v, dual_pipe_v]
PAIRS = [(p, m) for p in (1, 2, 3, 4) for m in (1, 2, 3, 4, 5, 8)]
LEGAL = [(make, p, m) for make in MAKERS for p, m in PAIRS if not why_illegal(make.__name__, p, m)]


def edited(schedule, rank, edit):
    """The schedule with one rank's row changed by `edit`, which gets a list."""
    row = list(schedule.ranks[rank])
    edit(row)
    ranks = (*schedule.ranks[:rank], tuple(row), *schedule.ranks[rank + 1 :])
    return replace(schedule, ranks=ranks)


def swap(first, second):
    def edit(row):
        i, j = row.index(first), row.index(second)
        row[i], row[j] = row[j], row[i]

    return edit


def program(schedule, rank, exchange):
    """A rank's row as a list of sets of one-sided operations that complete together."""
    steps, sends = [], set()
    for action in schedule.ranks[rank]:
        before, after = schedule.stage_before(rank, action), schedule.stage_after(rank, action)
        kind, i = "B" if action.kind in "BI" else action.kind, action.micro_batch
        receives = set()
        if before is not None and schedule.rank_of(before) != rank:
            receives = {("receive", kind, before, i)}
        steps += [sends, receives] if exchange == "in_turn" else [sends | receives]
        sends = set()
        if after is not None and schedule.rank_of(after) != rank:
            sends = {("send", kind, schedule.stage(rank, action.chunk), i)}
    return [*steps, sends]


def is_stuck(schedule, exchange, generator):
    """Ranks take a step in random order, when the other side of all they wait for is posted."""
    programs = [program(schedule, rank, exchange) for rank in range(schedule.num_ranks)]
    at = [0] * schedule.num_ranks
    other = {"send": "receive", "receive": "send"}
    while True:
        posted = {
            op for steps, i in zip(programs, at, strict=True) for s in steps[: i + 1] for op in s
        }
        movable = [
            rank
            for rank, steps in enumerate(programs)
            if at[rank] < len(steps)
            and all(
                (other[side], *message) in posted
                for side, *message in steps[at[rank]]
                if not (exchange == "asynchronous" and side == "send")
            )
        ]
        if not movable:
            return any(i < len(steps) for steps, i in zip(programs, at, strict=True))
        at[generator.choice(movable)] += 1


@pytest.mark.parametrize("exchange", ["in_turn", "batched", "asynchronous"])
@pytest.mark.parametrize("make", MAKERS)
def test_deadlocks_are_those_of_a_slow_machine(make, exchange):
    generator = random.Random(0)
    for _, p, m in [case for case in LEGAL if case[0] is make and case[2] <= 5]:
        schedule = make(p, m)
        found = deadlock(schedule, exchange)
        assert (found is not None) == is_stuck(schedule, exchange, generator), (p, m, found)


@pytest.mark.parametrize("exchange", ["in_turn", "batched", "asynchronous"])
def test_deadlocks_of_shuffled_schedules_are_those_of_a_slow_machine(exchange):
    """Rows whose forwards and backwards are shuffled: about half wait in a circle."""
    generator = random.Random(1)
    stuck = 0
    for _ in range(150):
        schedule = gpipe(3, 3)
        for rank in range(3):
            schedule = edited(schedule, rank, generator.shuffle)
        expected = is_stuck(schedule, exchange, generator)
        assert (deadlock(schedule, exchange) is not None) == expected
        stuck += expected
    assert stuck >= 30


def test_every_legal_schedule_passes_as_the_executor_runs_it():
    for make, p, m in LEGAL:
        validate(make(p, m))


def test_which_schedules_need_which_exchange():
    """Blocking sends stop 1F1B; sends that must complete stop chunks that wait for one another."""
    for schedule in (naive(4, 8), gpipe(4, 8)):
        assert fault(schedule, "in_turn") is None
    for schedule in (one_f_one_b(4, 8), zero_bubble(4, 8)):
        assert fault(schedule, "batched") is None
        assert "deadlock" in fault(schedule, "in_turn")
    for schedule in (interleaved(4, 8), zero_bubble_v(4, 8), dual_pipe_v(4, 8)):
        assert fault(schedule, "asynchronous") is None
        assert "deadlock" in fault(schedule, "batched")


def test_a_deadlock_says_which_action_waits_for_what():
    with pytest.raises(ValueError, match="deadlock") as raised:
        validate(one_f_one_b(2, 4), exchange="in_turn")
    assert str(raised.value) == (
        "one_f_one_b: deadlock: "
        "rank 0 waits after F1 to send the activation of stage 0, micro-batch 1, to rank 1; "
        "rank 1 waits after B0 to send the gradient of stage 1, micro-batch 0, to rank 0"
    )


def test_a_long_circle_is_told_in_short():
    with pytest.raises(ValueError, match="and so do 4 ranks more"):
        validate(interleaved(8, 16), exchange="batched")


def test_backward_order_that_crosses_is_found_without_running():
    """Rank 1 makes the gradient of B1 first, after F1, which rank 0 sends only after B0."""
    crossed = edited(one_f_one_b(2, 2), 1, swap(Action("B", 0), Action("F", 1)))
    crossed = edited(crossed, 1, swap(Action("B", 0), Action("B", 1)))
    validate(crossed)  # rank 0 sends both forwards before it waits
    late = edited(crossed, 0, swap(Action("F", 1), Action("B", 0)))
    with pytest.raises(
        ValueError, match=r"deadlock: rank 0 waits before B0 .* gradient of stage 1"
    ):
        validate(late)


@pytest.mark.parametrize(
    ("rank", "edit", "match"),
    [
        (1, lambda row: row.remove(Action("B", 2)), r"rank 1 must .* micro-batch 2 .* F 1 times$"),
        (0, lambda row: row.append(Action("F", 0)), "micro-batch 0 through chunk 0 .* F 2 times"),
        (0, lambda row: row.append(Action("W", 1)), "micro-batch 1 .* B 1 times, W 1 times"),
        (2, lambda row: row.clear(), "rank 2 must take micro-batch 0 .* found nothing"),
        (
            0,
            lambda row: row.append(Action("F", 4)),
            "F4, but there are kinds .* 4 micro-batches, 1 chunks",
        ),
        (
            0,
            lambda row: row.append(Action("F", 0, 1)),
            r"rank 0 runs F0\.1, but there are .* 1 chunks",
        ),
        (
            1,
            lambda row: row.append(Action("X", 0)),
            "rank 1 runs X0, but there are kinds F, B, I, W",
        ),
        (2, swap(Action("F", 1), Action("B", 1)), "rank 2 runs B1 before the forward of stage 2"),
    ],
)
def test_a_planted_fault_is_named(rank, edit, match):
    with pytest.raises(ValueError, match=match):
        validate(edited(one_f_one_b(3, 4), rank, edit))


def test_an_empty_schedule_is_no_legal_one():
    empty = replace(gpipe(2, 1), ranks=())
    with pytest.raises(ValueError, match="gpipe: 0 ranks, 1 chunks, 1 micro-batches: at least 1"):
        validate(empty)
    with pytest.raises(ValueError, match="2 ranks, 1 chunks, 0 micro-batches"):
        validate(replace(gpipe(2, 1), ranks=((), ()), num_micro_batches=0))


def test_faults_of_split_backwards_are_named():
    with pytest.raises(ValueError, match="rank 0 runs W1 before the gradient of the input"):
        validate(edited(zero_bubble(2, 3), 0, swap(Action("I", 1), Action("W", 1))))
    with pytest.raises(ValueError, match=r"micro-batch 1 through chunk 0 .* F 1 times, I 1 times$"):
        validate(edited(zero_bubble(2, 3), 0, lambda row: row.remove(Action("W", 1))))
    turn = swap(Action("F", 1), Action("F", 1, 1))  # stages 1 and 2 of the V lie on rank 1
    with pytest.raises(ValueError, match=r"rank 1 runs F1\.1 before the forward of stage 1"):
        validate(edited(zero_bubble_v(2, 3), 1, turn))


def test_more_than_may_be_held_is_refused():
    validate(one_f_one_b(4, 8), stash_limit=4)
    validate(gpipe(4, 8), stash_limit=8)
    with pytest.raises(ValueError, match=r"gpipe: rank 0 holds 8 micro-batches .* allowed are 4"):
        validate(gpipe(4, 8), stash_limit=4)
    with pytest.raises(ValueError, match=r"rank 0 holds 4 .* allowed are 3"):
        validate(one_f_one_b(4, 8), stash_limit=3)
