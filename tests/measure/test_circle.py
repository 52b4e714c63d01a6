"""Circles of waiting ranks on a store in this process: found where there is one, nowhere else."""

import pytest
import torch.distributed as dist

from labkit.measure.circle import Blocked, read_key


@pytest.fixture
def store():
    return dist.HashStore()


def ring(store, size, closed=True):
    """Ranks that each wait for the next, by the key "to next"."""
    ranks = [Blocked(store, rank) for rank in range(size)]
    for rank, blocked in enumerate(ranks[: size if closed else -1]):
        following = (rank + 1) % size
        blocked.publish(f"rank {rank} waits", {following: (f"to {following}", "to anyone")})
    return ranks


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_rank_of_a_circle_finds_it(store, size):
    told = {rank: f"rank {rank} waits" for rank in range(size)}
    assert [blocked.circle() for blocked in ring(store, size)] == [told] * size


def test_a_chain_is_no_circle(store):
    assert [blocked.circle() for blocked in ring(store, 3, closed=False)] == [{}] * 3


@pytest.mark.parametrize("key", ["to 1", "to anyone"])
def test_a_rank_whose_key_is_there_goes_on(store, key):
    ranks = ring(store, 3)
    store.set(key, "x")
    assert ranks[0].circle() == {}


def test_a_rank_that_stopped_waiting_breaks_the_circle(store):
    ranks = ring(store, 3)
    ranks[1].retract()
    assert ranks[0].circle() == {}


def test_a_wait_that_ended_during_the_look_is_no_proof(store, monkeypatch):
    first, second = ring(store, 2)
    plain = Blocked._search

    def slow_search(self, path, seen):
        found = plain(self, path, seen)
        second.retract()  # it got its message and waits for the next one, before the keys are read
        second.publish("rank 1 waits", {0: ("to 0, again",)})
        return found

    monkeypatch.setattr(Blocked, "_search", slow_search)
    assert first.circle() == {}


def test_who_waits_for_a_circle_is_not_in_it(store):
    ring(store, 2)
    outside = Blocked(store, 7)
    outside.publish("rank 7 waits", {0: ("to 0 from 7",)})
    assert outside.circle() == {}


def test_one_missing_partner_of_many_is_enough(store):
    first, second = Blocked(store, 0), Blocked(store, 1)
    first.publish("a", {2: ("x",), 1: ("y",)})
    second.publish("b", {0: ("z",)})
    assert first.circle() == {0: "a", 1: "b"}
    assert first.texts([1, 2]) == ["b"]


def test_reading_does_not_wait(store):
    assert read_key(store, "nothing") == b""
