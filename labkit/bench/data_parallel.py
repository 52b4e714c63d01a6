"""Data parallelism: our buckets beside torch DDP's, and overlap over a slow link.

    python -m labkit bench data_parallel

1. Two gloo ranks of one machine train `mini`: a step of BucketedDataParallel over one of DDP, both
   alive in the same ranks, in interleaved pairs; a pair's time is the slower rank's. Judged with
   equal buckets; our default beside DDP's is reported.
2. Two hosts and a link of 1 Gbit/s, a rank each (hosts.py; needs root): forward and backward
   with buckets of 1 MB over the same with one all-reduce after backward; buckets of 25 MB, which is
   more than all gradients, beside it.
3. The fabric's prediction of the second: logs of one step replayed at the link's measured alpha and
   beta and at the rate of arithmetic that a step without communication shows.
"""

import copy
import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from labkit.bench.hosts import can_make_hosts, run_on, two_hosts
from labkit.bench.stats import MIN_PAIRS, Ratio, interleaved, row
from labkit.comm.collectives import all_reduce
from labkit.launch import run_ranks, world
from labkit.measure.events import Compute, Event
from labkit.measure.fabric import Fabric, replay
from labkit.measure.log import EventLog
from labkit.model.config import PRESETS
from labkit.model.transformer import Transformer, initialise, next_token_loss
from labkit.parallel.data import BucketedDataParallel

MB = 10**6
MIB = 2**20
RATE = "1gbit"
STEP_BOUND, OVERLAP_BOUND, PREDICTION_BOUND = 1.05, 0.85, 0.10
LOCAL_BATCH, LINK_BATCH, SEQ_LEN = 4, 2, 128
ALL = 25 * MB  # more than mini's gradients: one bucket


def main() -> dict[str, Any]:
    """Print and return the ratios, times and predictions."""
    result: dict[str, Any] = {"model": "mini", "seq_len": SEQ_LEN, "rate": RATE}
    for ours, ddp in ((1, 1), (25, 25), (1, 25)):
        ratios = run_ranks(_beside_ddp, 2, ours, ddp, timeout=600.0)
        ratio = max(ratios, key=lambda ratio: ratio.low)
        bound = STEP_BOUND if ours == ddp else None
        print(row(f"mini step, ours {ours} MiB / DDP {ddp} MiB", ratio, bound))
        result[f"step_{ours}_over_{ddp}_mib"] = vars(ratio)
    if can_make_hosts():
        with two_hosts(RATE) as hosts:
            told = run_on(hosts, "labkit.bench.data_parallel", timeout=900.0)
        result["link"] = json.loads(told.splitlines()[-1])
        _print_link(result["link"])
    return result


def _print_link(link: dict[str, Any]) -> None:
    for name, bound in (("overlapped", OVERLAP_BOUND), ("one_bucket", None)):
        print(row(f"{RATE}: {name} / sequential", Ratio(**link[name]), bound))
    for name, (measured_s, predicted_s) in link["steps_s"].items():
        error = predicted_s / measured_s - 1
        verdict = "met" if abs(error) <= PREDICTION_BOUND else "MISSED"
        times = f"{1e3 * measured_s:.0f} ms, predicted {1e3 * predicted_s:.0f} ms ({error:+.1%})"
        print(f"{RATE}: {name:<12} {times}  bound {PREDICTION_BOUND:.0%} {verdict}")


def _mini() -> Transformer:
    model = Transformer(PRESETS["mini"])
    initialise(model, torch.Generator().manual_seed(0))
    return model


def _words(group: dist.ProcessGroup, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(dist.get_rank(group))
    words = torch.randint(0, 259, (batch, SEQ_LEN + 1), generator=generator)
    return words[:, :-1], words[:, 1:]  # [B, T] each


def _slowest_s(group: dist.ProcessGroup, fn: Callable[[], object]) -> float:
    dist.barrier(group)
    start = time.perf_counter()
    fn()
    took = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    return all_reduce(took, group, dist.ReduceOp.MAX).item()


def _beside_ddp(group: dist.ProcessGroup, our_mib: int, ddp_mib: int) -> Ratio:
    module = _mini()
    ours = BucketedDataParallel(copy.deepcopy(module), group, bucket_bytes=our_mib * MIB)
    theirs = DistributedDataParallel(module, bucket_cap_mb=ddp_mib, process_group=group)
    x, y = _words(group, LOCAL_BATCH)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        next_token_loss(model(x), y).backward()
        if isinstance(model, BucketedDataParallel):
            model.finish()
        optimizer.step()
        optimizer.zero_grad()

    our_step, their_step = (
        partial(step, model, torch.optim.AdamW(model.parameters())) for model in (ours, theirs)
    )
    return interleaved(our_step, their_step, clock=partial(_slowest_s, group))


def _over_the_link(group: dist.ProcessGroup) -> dict[str, Any]:
    x, y = _words(group, LINK_BATCH)

    def backward(model: nn.Module) -> None:
        model.zero_grad()
        next_token_loss(model(x), y).backward()

    def in_time(model: BucketedDataParallel) -> None:
        backward(model)
        model.finish()

    def afterwards(model: BucketedDataParallel) -> None:
        with model.no_sync():
            backward(model)
        model.finish()

    small, large = (BucketedDataParallel(_mini(), group, bucket_bytes=b) for b in (MB, ALL))
    steps = {
        "sequential": partial(afterwards, large),
        "overlapped": partial(in_time, small),
        "one_bucket": partial(in_time, large),
    }
    clock = partial(_slowest_s, group)
    times_s = _in_turns(steps | {"compute": partial(backward, _mini())}, clock)
    compute_s = statistics.median(times_s.pop("compute"))
    fabric_of = partial(_fabric, _link(group, clock), compute_s)
    return {
        "overlapped": vars(Ratio.of(times_s["overlapped"], times_s["sequential"])),
        "one_bucket": vars(Ratio.of(times_s["one_bucket"], times_s["sequential"])),
        "compute_s": compute_s,
        "gradient_bytes": sum(p.nbytes for p in small.parameters()),
        "steps_s": {
            name: (statistics.median(times_s[name]), _predicted_s(group, step, fabric_of))
            for name, step in steps.items()
        },
    }


def _in_turns(
    steps: Mapping[str, Callable[[], object]], clock: Callable[[Callable[[], object]], float]
) -> dict[str, list[float]]:
    """Times of each step, all of them once in every round; odd rounds run them backwards."""
    times_s: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(-2, MIN_PAIRS):  # two rounds to warm up
        for name in list(steps)[:: -1 if number % 2 else 1]:
            took = clock(steps[name])
            if number >= 0:
                times_s[name].append(took)
    return times_s


def _link(
    group: dist.ProcessGroup, clock: Callable[[Callable[[], object]], float]
) -> tuple[float, float]:
    """(alpha, beta) of the link, from all-reduces of two sizes: 2 alpha + S beta at two ranks."""
    sizes = (MB, 8 * MB)
    took = []
    for size in sizes:
        x = torch.ones(size // 4)
        took.append(statistics.median(clock(partial(all_reduce, x, group)) for _ in range(9)))
    beta = (took[1] - took[0]) / (sizes[1] - sizes[0])
    return max(0.0, (took[0] - sizes[0] * beta) / 2), beta


def _fabric(link: tuple[float, float], compute_s: float, logs: list[list[Event]]) -> Fabric:
    flops = sum(event.flops for event in logs[0] if isinstance(event, Compute))
    return Fabric(alpha=link[0], beta=link[1], flops=flops / compute_s)


def _predicted_s(
    group: dist.ProcessGroup,
    step: Callable[[], object],
    fabric_of: Callable[[list[list[Event]]], Fabric],
) -> float:
    with EventLog() as log:
        step()
    logs: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(logs, log.events, group=group)
    return replay(logs, fabric_of(logs)).step_s


if __name__ == "__main__":  # a rank on one of the two hosts
    with world(timeout=120) as world_group:
        torch.set_num_threads(1)
        print(json.dumps(_over_the_link(world_group)))
