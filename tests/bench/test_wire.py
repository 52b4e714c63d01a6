"""Bytes on the wire: the counters are read right, and a run in which TCP repeats is not counted.

Oracle: the kernel's own text, written here as it is printed; and a run spoilt on purpose.
"""

from functools import partial

import pytest
import torch.distributed as dist

from labkit.bench import wire
from labkit.launch import run_ranks

DEV = """Inter-|   Receive                          |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls
    lo:    1000  10 0 0 0 0 0 0   2000 20 0 0 0 0 0 0
  eth0:    3000  30 0 0 0 0 0 0   4000 40 0 0 0 0 0 0
"""
SNMP = """Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm ActiveOpens RetransSegs InErrs
Tcp: 1 2 7 3
"""


@pytest.fixture
def network(tmp_path):
    (tmp_path / "dev").write_text(DEV)
    (tmp_path / "snmp").write_text(SNMP)
    return tmp_path


def test_counters_are_those_of_the_interface(network):
    assert wire.sent_bytes("lo", network) == 2000
    assert wire.sent_bytes("eth0", network) == 4000
    assert wire.repeated_segments(network) == 7


def test_an_interface_that_is_not_there(network):
    with pytest.raises(ValueError, match="no interface 'eth1'; there are eth0, lo"):
        wire.sent_bytes("eth1", network)


def spoilt(group, network, times):
    """Each run sends 100 bytes more; rank 1 hears of a repeated segment in the first `times`."""
    folder = network / str(dist.get_rank(group))
    folder.mkdir()
    (folder / "snmp").write_text(SNMP)
    sent, repeated, runs = 0, 7, 0

    def run():
        nonlocal sent, repeated, runs
        sent, runs = sent + 100, runs + 1
        repeated += dist.get_rank(group) == 1 and runs <= times
        (folder / "dev").write_text(DEV.replace("2000", str(2000 + sent)))
        (folder / "snmp").write_text(SNMP.replace("2 7", f"2 {repeated}"))

    (folder / "dev").write_text(DEV)
    wire.sent_bytes = partial(wire.sent_bytes, network=folder)
    wire.repeated_segments = partial(wire.repeated_segments, network=folder)
    try:
        return wire.sent_once(run, "lo", group), runs
    except RuntimeError as error:
        return str(error), runs


def test_a_run_with_repeated_segments_on_one_rank_is_not_counted_on_any(network):
    assert run_ranks(spoilt, 2, network, 3) == [(100, 4)] * 2


def test_a_machine_that_always_repeats_is_too_busy(network):
    says = f"TCP repeated segments in each of {wire.RUNS} runs: the machine is too busy"
    assert run_ranks(spoilt, 2, network, 99) == [(says, wire.RUNS)] * 2
