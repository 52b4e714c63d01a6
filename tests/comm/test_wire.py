"""Bytes on the wire, counted by the kernel in a network namespace that holds nothing but the ranks.

Promised: the ring reduce-scatter sends (N-1) S, half of what gloo's own sends; the other handmade
collectives send what the library's do. Oracle: the loopback's transmit counter. Packet headers are
below 1 %; the namespace makes the rest exact.
"""

import pytest

from labkit.bench.collectives import can_isolate, wire_ratios

pytestmark = [
    pytest.mark.namespaces,
    pytest.mark.skipif(not can_isolate(), reason="needs root, ip and unshare"),
]


@pytest.fixture(scope="module")
def wire():
    return wire_ratios(4, 4 * 2**20)


def test_the_ring_reduce_scatter_sends_half_of_gloos(wire):
    ours, theirs = wire["reduce_scatter"]
    assert ours == pytest.approx(3, rel=0.02)
    assert ours <= 0.55 * theirs, "gloo's own sends what an all-reduce sends"


def test_the_rest_sends_what_the_formulas_say(wire):
    assert wire["all_reduce"] == pytest.approx([6, 6], rel=0.02)
    assert wire["all_gather"] == pytest.approx([12, 12], rel=0.02)
