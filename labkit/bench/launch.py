"""Start of a world: run_ranks against torch's own launchers, from the call to the last result.

    python -m labkit bench launch

Each start makes four ranks, sums a number over them and brings the sums back. The launchers take
turns, so that a busy moment of the machine meets all. Each has started once before: fork servers
run, files are cached. The elastic launcher is given a fork server with the same modules loaded, its
fastest setting; spawn has no such choice, and imports torch in every rank.
"""

import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from datetime import timedelta

import torch
import torch.distributed as dist

WORLD_SIZE = 4
REPEATS = 10
SLOW_REPEATS = 3  # of spawn: seconds each
TIMEOUT = timedelta(seconds=300)


def main(repeats: int = REPEATS, slow_repeats: int = SLOW_REPEATS) -> dict[str, dict[str, float]]:
    """Print a table of starts in seconds and return it by launcher."""
    launchers: dict[str, tuple[Callable[[], None], int]] = {
        "run_ranks": (start_run_ranks, repeats),
        "elastic_launch": (start_elastic, repeats),
        "spawn": (start_spawn, slow_repeats),
    }
    samples: dict[str, list[float]] = {name: [] for name in launchers}
    for turn in range(-1, repeats):
        for name, (start, count) in launchers.items():
            if turn < count:
                begin = time.perf_counter()
                start()
                if turn >= 0:  # the first start of each does not count
                    samples[name].append(time.perf_counter() - begin)
    results = {name: _summary(taken) for name, taken in samples.items()}
    print(f"starts of {WORLD_SIZE} ranks on {os.cpu_count()} cores, seconds")
    print(f"{'launcher':16}{'median':>8}{'fastest':>9}{'slowest':>9}{'starts':>8}")
    for name, r in results.items():
        numbers = f"{r['median_s']:8.3f}{r['fastest_s']:9.3f}{r['slowest_s']:9.3f}"
        print(f"{name:16}{numbers}{r['num_starts']:8.0f}")
    return results


def start_run_ranks() -> None:
    """Ours."""
    from labkit.launch import run_ranks

    sums = run_ranks(_sum_of_ones, WORLD_SIZE)
    assert sums == [WORLD_SIZE] * WORLD_SIZE, "every rank must return the sum"


def start_spawn() -> None:
    """torch.multiprocessing.spawn, results through files."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_spawned, (folder,), nprocs=WORLD_SIZE)
        sums = [torch.load(f"{folder}/{rank}", weights_only=True) for rank in range(WORLD_SIZE)]
    assert sums == [WORLD_SIZE] * WORLD_SIZE, "every rank must return the sum"


def start_elastic() -> None:
    """The launcher behind torchrun, as a function."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=WORLD_SIZE,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        start_method="forkserver",
        max_restarts=0,
    )
    logging.getLogger("torch.distributed.launcher.api").setLevel(logging.ERROR)  # a line a start
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        sums = elastic_launch(config, _elastic)()
    assert sums == dict.fromkeys(range(WORLD_SIZE), WORLD_SIZE), "every rank must return the sum"


def _sum_of_ones(group: dist.ProcessGroup | None) -> int:
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    return int(one)


def _spawned(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/store", TIMEOUT, WORLD_SIZE, rank)
    torch.save(_sum_of_ones(dist.group.WORLD), f"{folder}/{rank}")
    dist.destroy_process_group()


def _elastic() -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    total = _sum_of_ones(dist.group.WORLD)
    dist.destroy_process_group()
    return total


def _summary(samples: list[float]) -> dict[str, float]:
    return {
        "median_s": statistics.median(samples),
        "fastest_s": min(samples),
        "slowest_s": max(samples),
        "num_starts": len(samples),
    }
