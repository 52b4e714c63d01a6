"""Eight ranks on two hosts: which axis of the mesh should cross the slow link?

    python -m labkit bench two_hosts

`mini` is trained on dp=2, pp=2, tp=2 by torchrun on two hosts of four ranks, with a cable of 1
Gbit/s between them (hosts.py; needs root). The plan is one; the order of ranks in the mesh puts the
partners of the pipeline, of dp or of tp on different hosts. All three runs are alive in the same
ranks; a step is a whole training step on the corpus, its time the slowest rank's. In each round
every run takes one step, so a ratio's two times were taken back to back.

Beside the times stand the bytes that one step sends over the cable, both ways together: as the
ledger has them, on the one axis that crosses, and as the kernel counts them at both ends, headers
included, with those that TCP repeats where the cable's queue overflows or an answer is late. The
ranks of both hosts share this machine's cores: times are reported, not judged.
"""

import json
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from labkit.bench.data_parallel import _in_turns, _slowest_s
from labkit.bench.hosts import can_make_hosts, run_on, two_hosts
from labkit.bench.stats import Ratio, row
from labkit.bench.wire import repeated_segments, sent_bytes
from labkit.compose import Plan
from labkit.launch import world
from labkit.measure.ledger import CommLedger
from labkit.model.corpus import load_corpus
from labkit.train.parallel_run import Job, build
from labkit.train.trainer import TrainSettings

RATE, PER_HOST = "1gbit", 4
AXES = ("pp", "dp", "tp")  # that cross the cable, in turn
SETTINGS = TrainSettings(steps=100, batch_size=8, seq_len=128, num_micro_batches=2)
PLAN = Plan(dp=2, pp=2, tp=2, num_micro_batches=2)
SEGMENT_BYTES = 1514  # the most that one takes on a cable of 1500 bytes, with its headers
Step = Callable[[], object]


def main() -> dict[str, Any]:
    """Print and return times, ratios and bytes by the axis that crosses the cable."""
    if not can_make_hosts():
        print("two hosts on one machine need root, ip and tc: nothing is measured")
        return {}
    with two_hosts(RATE) as hosts:
        told = run_on(hosts, "labkit.bench.two_hosts", per_host=PER_HOST, timeout=900.0)
    result = {"model": "mini", "rate": RATE, "plan": "dp=2, pp=2, tp=2", **last_line(told)}
    _print(result)
    return result


def last_line(told: str) -> dict[str, Any]:
    """What rank 0 says at the end."""
    return json.loads(next(line for line in told.splitlines()[::-1] if line.startswith("{")))


def measure(group: dist.ProcessGroup, model: str, plan: Plan, axes: tuple[str, ...]) -> dict:
    """Bytes of one step by the axis that crosses the cable, on every rank."""
    steps = {axis: _step(model, plan, axis) for axis in axes}
    return {"bytes": {axis: _bytes(group, axis, steps[axis]) for axis in axes}, "steps": steps}


def _times(group: dist.ProcessGroup, steps: Mapping[str, Step]) -> dict[str, Any]:
    times_s = _in_turns(steps, partial(_slowest_s, group))
    first, *others = steps
    return {
        "step_s": {axis: statistics.median(times) for axis, times in times_s.items()},
        **{
            f"{first}_over_{other}": vars(Ratio.of(times_s[first], times_s[other]))
            for other in others
        },
    }


def _step(model: str, plan: Plan, across: str) -> Step:
    """A training step, on the next batch each time."""
    job = Job(
        name=model,
        settings=SETTINGS,
        plan=plan,
        text=load_corpus("pydoc"),
        out=Path(),
        save_every=1,
        resume=False,
        across=across,
    )
    parallel, batches = build(job, torch.device("cpu")), job.batches()
    numbers = iter(range(10**6))
    return lambda: parallel.step(*batches.batch(next(numbers)))


def _bytes(group: dist.ProcessGroup, axis: str, step: Step) -> dict[str, int]:
    """Of one step over the cable, both ways: by the ledger and by the kernel."""
    step()  # connections are made
    with CommLedger() as ledger:
        step()
    sent = torch.tensor(ledger.bytes_sent(axis=axis))
    dist.all_reduce(sent, group=group)
    before = _counters(group)
    step()
    ours = [after - then for after, then in zip(_counters(group), before, strict=True)]
    ends: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(ends, ours, group=group)
    wire, repeated = (sum(pair) for pair in zip(ends[0], ends[-1], strict=True))  # one a host
    return {"ledger": int(sent), "wire": wire, "repeated": SEGMENT_BYTES * repeated}


def _counters(group: dist.ProcessGroup) -> tuple[int, int]:
    """Bytes sent and segments repeated by this host, while nobody sends."""
    dist.barrier(group)
    counters = sent_bytes(_interface()), repeated_segments()
    dist.barrier(group)
    return counters


def _interface() -> str:
    """This host's end of the cable."""
    rows = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    return next(name for row in rows if (name := row.partition(":")[0].strip()) != "lo")


def _print(result: dict[str, Any]) -> None:
    for axis in AXES:
        sent = result["bytes"][axis]
        told = f"{sent['ledger'] / 1e6:.2f} MB by the ledger, {sent['wire'] / 1e6:.2f} MB counted"
        told += f", at most {sent['repeated'] / 1e6:.2f} MB of them again"
        print(f"{axis} across {RATE}: {1e3 * result['step_s'][axis]:.0f} ms a step, {told}")
    for other in AXES[1:]:
        print(row(f"step, pp across / {other} across", Ratio(**result[f"pp_over_{other}"])))


def _on_rank(group: dist.ProcessGroup, short: bool) -> dict[str, Any]:
    if short:
        found = measure(group, "nano", Plan(pp=2, tp=2, num_micro_batches=2), ("pp", "tp"))
        return {"bytes": found["bytes"]}
    found = measure(group, "mini", PLAN, AXES)
    return {"bytes": found["bytes"], **_times(group, found["steps"])}


if __name__ == "__main__":  # a rank on one of the two hosts
    with world(timeout=120) as world_group:
        torch.set_num_threads(1)
        said = _on_rank(world_group, short="short" in sys.argv)
        if dist.get_rank() == 0:
            print(json.dumps(said), flush=True)
