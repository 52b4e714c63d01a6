"""Logs of one rank a stage, replayed as if all ranks were there.

Oracle: `replay` of the logs of all real ranks where they are few; times by hand elsewhere.
"""

import pytest

from labkit.cost.cluster import Cluster
from labkit.cost.hardware import device, link
from labkit.launch import run_ranks
from labkit.measure.events import Compute, Launch, Wait
from labkit.measure.fabric import Fabric, replay
from labkit.measure.ledger import CommLedger
from labkit.simulate.holding import Holding
from labkit.simulate.replay import fabric_of, replay_runs
from labkit.simulate.run import RankRun, run_rank, simulate

from .plans import PLANS, job

ALPHA, BETA = 1e-6, 1e-9
FABRIC = Fabric(alpha=ALPHA, beta=BETA, flops=1e9)


def run_of(rank, *events):
    nothing = Holding(phase="forward", by_category={})
    return RankRun(
        rank=rank,
        ledger=CommLedger(),
        events=list(events),
        held=nothing,
        peak=nothing,
        most_kept_bytes=0,
    )


def message(id, operation, peer, ranks, size=1000):
    return Launch(id=id, operation=operation, axis="dp", ranks=ranks, bytes=size, peer=peer)


def exchange(first, group, size=1000):
    """Messages of rank 0 with all others, and the waits for them."""
    ids = range(first, first + 2 * (len(group) - 1))
    peers = [peer for peer in group[1:] for _ in range(2)]
    operations = ("recv", "send") * (len(group) - 1)
    launches = [
        message(i, operation, peer, group, size)
        for i, operation, peer in zip(ids, operations, peers, strict=True)
    ]
    return launches, [Wait(id=i) for i in ids]


def test_an_exchange_takes_its_sends_one_after_another():
    launches, waits = exchange(0, tuple(range(64)))
    timeline = replay_runs([run_of(0, *launches, *waits)], FABRIC)
    assert timeline.step_s == pytest.approx(63 * (ALPHA + 1000 * BETA), rel=1e-12)
    assert len([span for span in timeline.spans if span.lane == "communication"]) == 1


def test_two_exchanges_in_a_row_are_two_and_the_second_hides():
    """As a prefetch does: the first is needed now, the second after 1 ms of arithmetic."""
    first, first_waits = exchange(0, tuple(range(8)))
    second, second_waits = exchange(14, tuple(range(8)))
    events = [*first, *second, *first_waits, Compute(flops=1e6), *second_waits]
    [rank] = replay_runs([run_of(0, *events)], FABRIC).ranks
    one_s = 7 * (ALPHA + 1000 * BETA)
    assert rank.exposed_communication_s == pytest.approx(one_s, rel=1e-12)
    assert rank.overlapped_communication_s == pytest.approx(one_s, rel=1e-12)


def test_a_collective_of_peers_takes_what_all_its_members_take():
    group = tuple(range(0, 64, 2))
    launch = Launch(id=0, operation="all_reduce", axis="dp", ranks=group, bytes=6400)
    runs = [run_of(0, launch, Wait(id=0)), run_of(1, Compute(flops=1.0))]
    expected = 2 * 31 * (ALPHA + 6400 / 32 * BETA)
    assert replay_runs(runs, FABRIC).step_s == pytest.approx(expected, rel=1e-12)


def test_messages_between_stages_meet_whatever_their_ranks():
    """Stage 1 is rank 8 of a world with tp = 8; it cannot start before stage 0 has sent."""
    pair = (0, 8)
    sender = run_of(0, Compute(flops=1e6), message(0, "send", 8, pair), Wait(id=0))
    receiver = run_of(8, message(0, "recv", 0, pair), Wait(id=0), Compute(flops=1e6))
    timeline = replay_runs([sender, receiver], FABRIC)
    assert timeline.step_s == pytest.approx(2e-3 + ALPHA + 1000 * BETA, rel=1e-12)
    assert timeline.ranks[1].waiting_s == pytest.approx(1e-3, rel=1e-12)


def test_links_are_those_between_the_global_ranks():
    fabric = Fabric.of_nodes(8, intra=(0.0, 1e-9), inter=(0.0, 1e-6), flops=1e9)
    near, far = (exchange(0, ranks)[0] for ranks in ((0, 1, 2, 3), (0, 8, 16, 24)))
    inside, across = (replay_runs([run_of(0, *messages)], fabric) for messages in (near, far))
    assert inside.step_s == pytest.approx(3e-6, rel=1e-12)
    assert across.step_s == pytest.approx(3e-3, rel=1e-12)


def test_a_partner_that_never_sends_is_a_hang():
    receiver = run_of(8, message(0, "recv", 0, (0, 8)), Wait(id=0))
    with pytest.raises(ValueError, match="the logs hang"):
        replay_runs([run_of(0), receiver], FABRIC)


def on_this_rank(group, name):
    return run_rank(job(name)).events


@pytest.mark.parametrize("name", ["1F1B", "pp x tp"])
def test_representatives_take_as_long_as_all_ranks(name):
    logs = run_ranks(on_this_rank, PLANS[name].world_size, name, timeout=60)
    whole = replay(logs, FABRIC)
    part = replay_runs(simulate(job(name)), FABRIC)
    assert part.step_s == pytest.approx(whole.step_s, rel=1e-9)


def test_a_cluster_as_a_fabric():
    h100 = device("h100")
    cluster = Cluster(device=h100, intra=link("nvlink4"), inter=link("infiniband-ndr"))
    fabric = fabric_of(cluster, "bf16")
    assert fabric.flops < h100.flops_per_s("bf16")
    assert fabric.link_between(0, 7) != fabric.link_between(0, 8)
    assert fabric.link_between(0, 8)[1] > 1 / link("infiniband-ndr").bandwidth_bytes_per_s
