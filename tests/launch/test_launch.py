"""What run_ranks promises when all goes well.

Results in rank order, whatever they are; output whole and in rank order; the caller's process
untouched. The oracles are written out: what a rank must return, print or see is known beforehand.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from labkit.launch import device, run_ranks, world

SCALE = 3


def total(group, x):
    dist.all_reduce(x, group=group)
    return x * SCALE


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_each_rank_gets_the_group_and_its_own_copy_of_the_arguments(world_size):
    x = torch.ones(3, dtype=torch.float64)
    results = run_ranks(total, world_size, x)
    assert len(results) == world_size
    for result in results:
        assert torch.equal(result, torch.full((3,), SCALE * world_size, dtype=torch.float64))
    assert torch.equal(x, torch.ones(3, dtype=torch.float64))


def test_results_come_in_rank_order_whoever_is_first():
    def late_first(group):
        time.sleep(0.1 * (2 - dist.get_rank(group)))
        return dist.get_rank(group)

    assert run_ranks(late_first, 3) == [0, 1, 2]


def test_output_of_python_c_and_children_is_shown_in_rank_order(capfd):
    def speak(group):
        time.sleep(0.05 * (1 - dist.get_rank(group)))
        print("from print")
        os.write(2, b"from C\n")
        subprocess.run(["echo", "from a child"], check=True)
        print("no newline", end="")

    run_ranks(speak, 2)
    said = ["from print", "from C", "from a child", "no newline"]
    assert capfd.readouterr().out.splitlines() == [f"[rank {r}] {s}" for r in (0, 1) for s in said]
    run_ranks(speak, 2, echo=False)
    assert capfd.readouterr() == ("", "")


def test_ranks_see_torchruns_variables_and_the_callers(monkeypatch, tmp_path):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "MINE")

    def see(group):
        return [os.environ.get(name) for name in names], os.getcwd(), torch.get_num_threads()

    monkeypatch.setenv("MINE", "set after the fork server started")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    for rank, (seen, folder, threads) in enumerate(run_ranks(see, 2)):
        assert seen == [str(rank), str(rank), "2", "2", "1", "set after the fork server started"]
        assert folder == str(tmp_path)
        assert threads == 1
    assert dict(os.environ) == before
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert run_ranks(see, 1)[0][0][4] == "2"


def test_no_fixed_port_and_parallel_launches(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "29500")
    with socket.socket() as occupied, ThreadPoolExecutor(4) as pool:
        occupied.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        occupied.bind(("127.0.0.1", 29500))
        occupied.listen()
        worlds = [pool.submit(run_ranks, total, 2, torch.full((1,), n)) for n in range(4)]
        assert [int(done.result()[1]) for done in worlds] == [2 * SCALE * n for n in range(4)]
    assert os.environ["MASTER_PORT"] == "29500"


def test_the_rendezvous_listens_on_loopback_only():
    def listening(group):
        port = f"{int(os.environ['MASTER_PORT']):04X}"
        lines = [line for table in tables for line in table.read_text().splitlines()]
        return [fields[1] for fields in map(str.split, lines) if fields[1].endswith(":" + port)]

    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    if not tables[0].exists():
        pytest.skip("needs Linux's /proc/net/tcp")
    addresses = run_ranks(listening, 1)[0]
    assert addresses
    assert all(address.rpartition(":")[0].endswith("0100007F") for address in addresses)


def test_the_folder_of_the_call_is_private_and_goes_away(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def look(group):
        return [oct(folder.stat().st_mode & 0o777) for folder in tmp_path.iterdir()]

    assert run_ranks(look, 1) == [["0o700"]]
    assert not list(tmp_path.iterdir())


def test_worlds_follow_each_other_in_all_sizes():
    for world_size in (1, 2, 4, 2):
        assert (
            run_ranks(lambda group: dist.get_world_size(group), world_size)
            == [world_size] * world_size
        )


def test_a_loader_with_workers_inside_a_rank():
    def load(group):
        loader = DataLoader(range(8), 2, num_workers=2, collate_fn=lambda batch: float(sum(batch)))
        return sum(loader)

    assert run_ranks(load, 2) == [28.0, 28.0]


def test_gloo_on_the_cpu_on_request_and_its_device():
    def where(group):
        return dist.get_backend(group), str(device())

    assert run_ranks(where, 2, device="cpu") == [("gloo", "cpu")] * 2


def test_ranks_without_a_host_name(monkeypatch):
    # Gloo alone would ask for the host name's address; the interface below has one of its own.
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert run_ranks(lambda group: os.environ["GLOO_SOCKET_IFNAME"][:2], 1) == ["lo"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert run_ranks(lambda group: os.environ["GLOO_SOCKET_IFNAME"], 1) == ["lo"]


def test_nothing_is_left_running_in_the_caller():
    run_ranks(total, 2, torch.ones(1))
    names = {thread.name for thread in threading.enumerate()}
    run_ranks(total, 2, torch.ones(1))
    assert {thread.name for thread in threading.enumerate()} == names


SCRIPT = """
import torch.distributed as dist
from labkit.launch import run_ranks
print("the script runs")
base = 10
class Adder:
    def __call__(self, group): return base + dist.get_rank(group)
print(run_ranks(Adder(), 2), run_ranks(lambda group: base, 1))
"""


def test_a_script_needs_no_guard_and_runs_once(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    command = [sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("the script runs\n[10, 11] [10]\n", "")


def test_world_needs_torchrun():
    with pytest.raises(RuntimeError, match="LOCAL_WORLD_SIZE is not set"), world():
        pass
