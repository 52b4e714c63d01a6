"""What a transfer takes, replayed, against labkit.cost.collectives.

Oracles: closed forms; rings and trees written as single messages. Times are exact up to the
rounding of a few float additions: 1e-12 relative; equal where the numbers are whole.
"""

import pytest

from labkit.cost import collectives as cost
from labkit.measure.events import Wait
from labkit.measure.fabric import Fabric, replay
from tests.measure.hand_logs import ALPHA, BETA, PLAIN, close, collective, message


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
