"""The same function under torchrun: on this host, and over two network namespaces as two hosts.

The oracle is run_ranks with the same function. A namespace has interfaces of its own: what the two
share goes over the wire between them, and is counted there.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from labkit.launch import run_ranks

NUM_ELEMENTS = 250_000
SEGMENT_BYTES = 1514  # the most that one takes on a cable of 1500 bytes, with its headers
PROGRAM = f"""
import os
import torch
import torch.distributed as dist
from labkit.launch import device, world

def total(group, n):
    x = torch.full((n,), dist.get_rank(group) + 1.0, device=device())
    dist.all_reduce(x, group=group)
    return dist.get_world_size(group), int(os.environ["LOCAL_RANK"]), x.sum().item()

with world(timeout=60) as group:
    line = " ".join(map(str, ("told", *total(group, {NUM_ELEMENTS}))))
    os.write(1, (line + chr(10)).encode())  # one write a line: ranks share the pipe
assert not dist.is_initialized()
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def total(group, n):
    x = torch.full((n,), dist.get_rank(group) + 1.0)
    dist.all_reduce(x, group=group)
    return dist.get_world_size(group), int(os.environ["LOCAL_RANK"]), x.sum().item()


def told(text):
    """What the ranks printed, sorted: torchrun shows them as they come."""
    return sorted(line.split()[1:] for line in text.splitlines() if line.startswith("told"))


def expected(local_ranks):
    size, _, value = run_ranks(total, 2, NUM_ELEMENTS)[0]
    return [[str(size), str(local), str(value)] for local in local_ranks]


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_world_under_torchrun_on_one_host(program):
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert told(done.stdout) == expected([0, 1])


@pytest.mark.namespaces
def test_a_host_whose_name_does_not_resolve(program):
    needs_root("unshare")
    script = 'hostname no-such-host; mount --bind /dev/null /etc/resolv.conf; exec "$@"'
    code = (
        "import socket; from labkit.launch import run_ranks; from program import total\n"
        "try: socket.gethostbyname(socket.gethostname())\n"
        "except OSError: print(run_ranks(total, 2, 10, echo=False)[0])"
    )
    command = ["unshare", "-mu", "sh", "-c", script, "sh", sys.executable, "-c", code]
    folder = Path(program).parent
    Path(program).write_text(PROGRAM.partition("with world")[0])
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.stdout == "(2, 0, 30.0)\n", done.stderr


def needs_root(tool):
    if os.geteuid() != 0 or shutil.which(tool) is None:
        pytest.skip(f"needs root and the {tool} command")


@pytest.fixture
def hosts():
    """Two namespaces joined by one cable: (name, interface, address) of each."""
    needs_root("ip")
    mark = os.getpid() % 100_000
    ends = [(f"lk{mark}a", f"va{mark}", "10.77.0.1"), (f"lk{mark}b", f"vb{mark}", "10.77.0.2")]
    try:
        for name, _, _ in ends:
            ip("netns", "add", name)
        (a, va, _), (b, vb, _) = ends
        ip("link", "add", va, "netns", a, "type", "veth", "peer", "name", vb, "netns", b)
        for name, interface, address in ends:
            ip("-n", name, "addr", "add", f"{address}/24", "dev", interface)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", interface, "up")
        yield ends
    finally:
        for name, _, _ in ends:  # each takes its processes and its end of the cable along
            script = f"ip netns pids {name} | xargs -r kill -9; ip netns del {name}"
            subprocess.run(["sh", "-c", script], capture_output=True, timeout=10)


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


def on_the_wire(name, interface):
    """Bytes that left a namespace by its interface, headers included; those that TCP repeated."""
    code = (
        "from labkit.bench.wire import repeated_segments, sent_bytes\n"
        f"print(sent_bytes({interface!r}), {SEGMENT_BYTES} * repeated_segments())"
    )
    command = ["ip", "netns", "exec", name, sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return [int(number) for number in done.stdout.split()]


def start(host, node_rank, program, log):
    name, interface, _ = host
    command = [*TORCHRUN, "--nnodes=2", "--nproc-per-node=1", f"--node-rank={node_rank}"]
    command += ["--rdzv-backend=static", "--master-addr=10.77.0.1", "--master-port=29500", program]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface}
    return subprocess.Popen(
        ["ip", "netns", "exec", name, *command],
        env=environment,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@pytest.mark.namespaces
def test_world_over_two_hosts(program, hosts, tmp_path):
    logs = [tmp_path / "log0", tmp_path / "log1"]
    before = [on_the_wire(name, interface) for name, interface, _ in hosts]
    nodes = [start(host, rank, program, logs[rank]) for rank, host in enumerate(hosts)]
    try:
        codes = [node.wait(timeout=120) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    texts = [log.read_text() for log in logs]
    assert codes == [0, 0], texts
    assert [line for text in texts for line in told(text)] == expected([0, 0])
    # An all-reduce of S bytes over two ranks sends S from each; rendezvous and headers take little.
    payload = NUM_ELEMENTS * 4
    for (name, interface, _), (sent_before, repeated_before) in zip(hosts, before, strict=True):
        sent, repeated = on_the_wire(name, interface)
        sent, repeated = sent - sent_before, repeated - repeated_before
        print(f"{interface}: payload {payload} bytes, wire {sent} bytes, {repeated} of them again")
        assert payload <= sent <= 1.15 * payload + repeated
