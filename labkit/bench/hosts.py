"""Two hosts on one machine: two network namespaces and a cable of a chosen rate between them.

    with two_hosts("1gbit") as hosts:
        text = run_on(hosts, "labkit.bench.data_parallel")

Each namespace has an interface of its own, shaped by the kernel's token bucket filter (tc-tbf), so
that what two ranks say to each other takes bytes * 8 / rate. Needs root and Linux. The namespaces
end with the block, and take their processes along.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

PORT = 29500  # nobody else lives in the namespace


class Host(NamedTuple):
    """A namespace, its end of the cable and its address."""

    name: str
    interface: str
    address: str


def can_make_hosts() -> bool:
    """Whether this process may make namespaces and shape their traffic."""
    return os.geteuid() == 0 and bool(shutil.which("ip")) and bool(shutil.which("tc"))


@contextmanager
def two_hosts(rate: str) -> Iterator[list[Host]]:
    """Make both namespaces and the cable.

    Args:
        rate: of the cable in each direction, in tc's words, such as "1gbit".

    Raises:
        RuntimeError: without root, ip or tc.
    """
    if not can_make_hosts():
        raise RuntimeError("two hosts on one machine need root, ip and tc")
    mark = os.getpid() % 100_000
    hosts = [
        Host(f"lb{mark}{end}", f"vb{mark}{end}", f"10.77.0.{number}")
        for number, end in ((1, "a"), (2, "b"))
    ]
    try:
        for host in hosts:
            _run("ip", "netns", "add", host.name)
        a, b = hosts
        cable = ["type", "veth", "peer", "name", b.interface, "netns", b.name]
        _run("ip", "link", "add", a.interface, "netns", a.name, *cable)
        for name, interface, address in hosts:
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", interface)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", interface, "up")
            shape = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            _run("tc", "-n", name, "qdisc", "add", "dev", interface, "root", *shape)
        yield hosts
    finally:
        for host in hosts:
            script = f"ip netns pids {host.name} | xargs -r kill -9; ip netns del {host.name}"
            subprocess.run(["sh", "-c", script], capture_output=True, timeout=10)


def run_on(
    hosts: list[Host], module: str, *arguments: str, per_host: int = 1, timeout: float = 300.0
) -> str:
    """Run `python -m module` on each host, under torchrun; what the first host's ranks printed.

    Args:
        per_host: ranks on each host.

    Raises:
        RuntimeError: if a rank fails, with what its host's ranks printed.
        subprocess.TimeoutExpired: if the ranks take longer than `timeout` seconds.
    """
    nodes = [
        subprocess.Popen(
            [*_entering(host), *_torchrun(hosts[0], rank, per_host), module, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        printed = [node.communicate(timeout=timeout)[0] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    for rank, node in enumerate(nodes):
        if node.returncode:
            where = f"rank {rank}" if per_host == 1 else f"a rank of host {rank}"
            raise RuntimeError(f"{where} failed with exit code {node.returncode}:\n{printed[rank]}")
    return printed[0]


def _entering(host: Host) -> list[str]:
    variables = [f"GLOO_SOCKET_IFNAME={host.interface}", "OMP_NUM_THREADS=1"]
    return ["ip", "netns", "exec", host.name, "env", *variables]


def _torchrun(master: Host, node: int, per_host: int) -> list[str]:
    options = ["--nnodes=2", f"--nproc-per-node={per_host}", f"--node-rank={node}"]
    options += ["--rdzv-backend=static", f"--master-addr={master.address}", f"--master-port={PORT}"]
    return [sys.executable, "-m", "torch.distributed.run", *options, "-m"]


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=10)
