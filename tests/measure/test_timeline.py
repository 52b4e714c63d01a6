"""What a timeline tells. Oracle: a step of a few whole numbers, worked out by hand."""

from labkit.measure.events import Compute, Mark, Wait
from labkit.measure.fabric import replay
from labkit.measure.timeline import COMMUNICATION, COMPUTE
from tests.measure.hand_logs import UNIT, close, collective


def test_a_transfer_that_nobody_waits_for_still_counts():
    log = [collective(0, (0, 1)), Compute(flops=1)]
    timeline = replay([log, log], UNIT)
    assert timeline.step_s == 4
    assert timeline.ranks[0].finish_s == 1
    assert timeline.ranks[0].idle_s == 3


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


def uneven_logs():
    """Four ranks that compute for 1, 2, 3 and 4 seconds before each of three all-reduces."""
    return [
        [
            event
            for call in range(3)
            for event in (Compute(flops=rank + 1), collective(call, (0, 1, 2, 3)), Wait(id=call))
        ]
        for rank in range(4)
    ]


def test_the_three_states_fill_every_rank_up_to_the_end_of_its_log():
    timeline = replay(uneven_logs(), UNIT)
    for rank in timeline.ranks:
        parts = rank.compute_s + rank.exposed_communication_s + rank.waiting_s
        assert parts == close(rank.finish_s)
        assert rank.waiting_s == 3 * (3 - rank.rank)  # the slowest computes for 4 s a call
    again = replay(uneven_logs(), UNIT)
    assert again == timeline
