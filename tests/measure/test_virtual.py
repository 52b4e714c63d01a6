"""Order in virtual time: who queues, who matches whom, and what would hang.

Oracle: times added up by hand on a fabric of whole numbers, so they are equal, not close.
"""

import pytest

from labkit.measure.events import Compute, Mark, Wait
from labkit.measure.fabric import replay
from tests.measure.hand_logs import PLAIN, UNIT, collective, message


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
