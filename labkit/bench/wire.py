"""Bytes that leave by an interface, as the kernel counts them, without what TCP said twice.

    sent = sent_once(lambda: collective(x, group), "lo", group)

The counter has everything that leaves a network namespace: payload, headers, and the segments that
TCP repeats when an answer is late. A busy machine answers late, so a run is counted only if nothing
was repeated in it, on any rank.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_reduce

RUNS = 20  # that may be spoilt before the machine counts as too busy
NETWORK = Path("/proc/self/net")  # of this process's namespace


def sent_bytes(interface: str, network: Path = NETWORK) -> int:
    """Bytes sent by an interface so far, headers included.

    Raises:
        ValueError: if there is no such interface.
    """
    rows = [line.partition(":") for line in (network / "dev").read_text().splitlines()[2:]]
    counters = {name.strip(): numbers.split() for name, _, numbers in rows}
    if interface not in counters:
        raise ValueError(f"no interface {interface!r}; there are {', '.join(sorted(counters))}")
    return int(counters[interface][8])  # eight numbers on what was received stand before


def repeated_segments(network: Path = NETWORK) -> int:
    """Segments that TCP has sent again so far, in this namespace."""
    rows = [line.split() for line in (network / "snmp").read_text().splitlines()]
    names, values = (row for row in rows if row[0] == "Tcp:")
    return int(values[names.index("RetransSegs")])


def sent_once(run: Callable[[], object], interface: str, group: dist.ProcessGroup) -> int:
    """Bytes that leave by the interface while all ranks run, in a run without repeated segments.

    Every rank of the group calls it; on one host each gets the bytes of all of them.

    Raises:
        RuntimeError: on every rank, if TCP repeats something in each of RUNS runs.
    """
    for _ in range(RUNS):
        bytes_before, repeated_before = _still(interface, group)
        run()
        bytes_after, repeated_after = _still(interface, group)
        repeated = torch.tensor(repeated_after - repeated_before)
        if all_reduce(repeated, group, dist.ReduceOp.MAX).item() == 0:
            return bytes_after - bytes_before
    raise RuntimeError(f"TCP repeated segments in each of {RUNS} runs: the machine is too busy")


def _still(interface: str, group: dist.ProcessGroup) -> tuple[int, int]:
    """The counters while nobody sends: one barrier ends what was, one holds back what comes."""
    dist.barrier(group)
    counters = sent_bytes(interface), repeated_segments()
    dist.barrier(group)
    return counters
