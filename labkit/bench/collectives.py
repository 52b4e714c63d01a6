"""Handmade collectives against the library's: time in one run, and bytes on the wire.

    python -m labkit bench collectives            prints both, at 2 and 4 ranks

Time is taken in interleaved pairs; a pair's time is that of its slowest rank. Ours are faster where
the ratio is below one. Where there are more ranks than cores the ratio is reported, not judged.

The wire is the loopback counter of a network namespace that holds nothing but the ranks, so it
needs root and Linux. It counts everything, packet headers too. gloo's reduce-scatter sends what an
all-reduce sends, 2(N-1) S over all ranks; a ring sends (N-1) S.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from labkit.bench.stats import Ratio, interleaved, row
from labkit.bench.wire import sent_once
from labkit.comm import collectives, handmade
from labkit.launch import run_ranks

MIB = 2**20
PAIRS = {  # name: (ours, the library's)
    "reduce_scatter": (handmade.ring_reduce_scatter, collectives.reduce_scatter),
    "all_gather": (handmade.ring_all_gather, collectives.all_gather),
    "all_reduce": (handmade.ring_all_reduce, collectives.all_reduce),
}


def time_ratios(world_size: int, size_bytes: int = 16 * MIB) -> dict[str, Ratio]:
    """Time of ours over time of the library's, by collective; x is fp32 of `size_bytes`."""
    return run_ranks(_time_on_rank, world_size, size_bytes, timeout=600.0)[0]


def wire_ratios(world_size: int, size_bytes: int = 16 * MIB) -> dict[str, tuple[float, float]]:
    """Bytes that all ranks send over the loopback, ours and the library's, in multiples of S.

    Raises:
        RuntimeError: if no private network namespace can be made, or the run in it fails.
    """
    if not can_isolate():
        raise RuntimeError("counting bytes on the wire needs root, ip and unshare")
    module = "labkit.bench.collectives"
    run = [sys.executable, "-m", module, str(world_size), str(size_bytes)]
    script = 'ip link set lo up && exec "$@"'
    child = subprocess.run(
        ["unshare", "--net", "sh", "-c", script, "sh", *run], capture_output=True, text=True
    )
    if child.returncode:
        raise RuntimeError(f"the run in its own namespace failed:\n{child.stderr}")
    return {name: tuple(pair) for name, pair in json.loads(child.stdout.splitlines()[-1]).items()}


def can_isolate() -> bool:
    """Whether this process may make a network namespace of its own."""
    return os.geteuid() == 0 and bool(shutil.which("ip")) and bool(shutil.which("unshare"))


def main() -> dict[str, Any]:
    """Print both tables and return them by number of ranks and collective."""
    result: dict[str, Any] = {"payload_bytes": 16 * MIB}
    for world_size in (2, 4):
        times = result[f"time_{world_size}_ranks"] = {}
        for name, ratio in time_ratios(world_size).items():
            bound = (
                1.0 if name == "reduce_scatter" and world_size <= (os.cpu_count() or 1) else None
            )
            print(row(f"{world_size} ranks: time of {name}, ours / library", ratio, bound))
            times[name] = vars(ratio)
    for world_size in (2, 4) if can_isolate() else ():
        wire = result[f"wire_{world_size}_ranks"] = {}
        for name, (ours, theirs) in wire_ratios(world_size).items():
            print(f"{world_size} ranks: wire of {name}, ours {ours:.2f} S, library {theirs:.2f} S")
            wire[name] = {"ours": ours, "library": theirs}
    return result


def _time_on_rank(group: dist.ProcessGroup, size_bytes: int) -> dict[str, Ratio]:
    def slowest_s(fn: Callable[[], object]) -> float:
        dist.barrier(group)
        start = time.perf_counter()
        fn()
        took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        return collectives.all_reduce(took, group, dist.ReduceOp.MAX).item()

    x = torch.ones(size_bytes // 4)
    return {
        name: interleaved(partial(ours, x, group), partial(theirs, x, group), clock=slowest_s)
        for name, (ours, theirs) in PAIRS.items()
    }


def _count_on_rank(group: dist.ProcessGroup, size_bytes: int) -> dict[str, list[float]]:
    x = torch.ones(size_bytes // 4)
    counted: dict[str, list[float]] = {}
    for name, pair in PAIRS.items():
        for collective in pair:
            collective(x, group)  # connections are made on first use
            sent = sent_once(partial(collective, x, group), "lo", group)
            counted.setdefault(name, []).append(sent / size_bytes)
    return counted


if __name__ == "__main__":  # the child of wire_ratios, alone in its namespace
    print(json.dumps(run_ranks(_count_on_rank, *map(int, sys.argv[1:]))[0]))
