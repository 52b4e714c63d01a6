"""Lab 08: the check of the planner, by brute force on random clusters.

The parent prices every (dp, pp, tp, m) up to the number of devices and sequences, without a thought
about what divides: what a Job refuses is none. A learner's answer is right if it fits and no layout
that fits is faster. Other answers are compared with those of rules of thumb, each of which is right
on some clusters.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from random import Random
from typing import Any, cast

import torch.distributed as dist

from labkit.cost.architecture import Architecture
from labkit.cost.cluster import Cluster
from labkit.cost.hardware import device, link
from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab08_job import Job

Sizes = tuple[int, int, int, int]  # dp, pp, tp, m
Answers = Sequence[tuple[Job, Any]]
Priced = dict[Sizes, tuple[float, int]]  # seconds, bytes
DEVICES = (("v100", "nvlink2"), ("a100-80", "nvlink3"), ("h100", "nvlink4"), ("l4", "pcie4"))
NETWORKS = ("ethernet-25g", "ethernet-100g", "infiniband-hdr")
SEEDS = tuple(range(20))


def run_best_layout(group: dist.ProcessGroup, learner: Callable, jobs: Sequence[Job]) -> list[Any]:
    """On one rank: the learner's layout for every job."""
    return [learner(job) for job in jobs]


def check_best_layout(learner: Learner) -> Iterator[str]:
    """The fastest layout that fits, on every cluster."""
    jobs = [random_job(seed) for seed in SEEDS]
    answers = list(zip(jobs, learner.run(run_best_layout, 1, jobs)[0], strict=True))
    for job, got in answers:
        judge_layout(answers, job, got)
    yield from ("legal", "fits", "fastest", "none")


@cache
def random_job(seed: int) -> Job:
    """A model of random sizes on a cluster of random links and memory."""
    random = Random(seed)
    heads = random.choice((8, 12, 16, 24))
    architecture = Architecture(
        num_layers=random.choice((3, 6, 12, 20)),
        hidden_size=128 * heads,
        intermediate_size=128 * heads * random.choice((3, 4)),
        num_heads=heads,
        num_kv_heads=heads // random.choice((1, 2, 4)),
        head_dim=128,
        vocab_size=random.choice((32_000, 50_257)),
    )
    name, inside = random.choice(DEVICES)
    job = Job(
        architecture=architecture,
        cluster=Cluster(
            device=device(name),
            devices_per_node=random.choice((2, 4, 8)),
            intra=link(inside),
            inter=link(random.choice(NETWORKS)),
        ),
        num_devices=random.choice((1, 8, 16, 24)),
        batch_size=random.choice((12, 16, 24, 32)),
        seq_len=random.choice((512, 1024, 2048)),
    )
    needed = sorted(size for _, size in priced(job).values())
    budget = (
        needed[int(random.uniform(0.0, 0.7) * len(needed))]
        if random.random() < 0.85
        else needed[0] // 2
    )
    small = replace(job.cluster.device, memory_bytes=int(budget / 0.899))
    return replace(job, cluster=replace(job.cluster, device=small))


@cache
def priced(job: Job) -> Priced:
    """Every layout that there is, whether it fits or not."""
    found: Priced = {}
    for dp, pp, tp in product(range(1, job.num_devices + 1), repeat=3):
        if dp * pp * tp != job.num_devices:
            continue
        for m in range(1, job.batch_size + 1):
            try:
                found[dp, pp, tp, m] = job.step_s(dp, pp, tp, m), job.memory_bytes(dp, pp, tp, m)
            except ValueError:
                continue
    return found


def fitting(job: Job) -> Priced:
    """Those that fit."""
    return {sizes: each for sizes, each in priced(job).items() if each[1] <= job.budget_bytes}


def judge_layout(answers: Answers, job: Job, got: Any) -> None:
    """Form, what divides, what fits, what is fastest, in this order."""
    told, fits = {"job": job}, fitting(job)
    best = min(fits, key=lambda sizes: fits[sizes][0], default=None)
    if got is None:
        if best is not None:
            raise CheckFailed("lab08.best_layout.none", expected=_named(best), **told)
        return
    if not isinstance(got, (tuple, list)) or [type(each) for each in got] != [int] * 4:
        raise CheckFailed("lab08.best_layout.form", got=f"{got!r:.60}", **told)
    sizes = cast(Sizes, tuple(got))
    if sizes not in priced(job):
        raise CheckFailed(
            "lab08.best_layout.illegal", got=_named(sizes), why=_why(job, sizes), **told
        )
    if sizes not in fits:
        needed = {"needed": _gb(priced(job)[sizes][1]), "budget": _gb(job.budget_bytes)}
        key = "too_large" if fits else "nothing_fits"
        raise CheckFailed(f"lab08.best_layout.{key}", got=_named(sizes), **needed, **told)
    assert best is not None, "what was got fits"
    if fits[sizes][0] > fits[best][0]:
        slower = f"{100 * (fits[sizes][0] / fits[best][0] - 1):.2g} %"
        shown = {"got": _named(sizes), "slower": slower}
        raise CheckFailed(f"lab08.best_layout.{_cause(answers, job, sizes, best)}", **shown, **told)


def _cause(answers: Answers, job: Job, got: Sizes, best: Sizes) -> str:
    """The rule of thumb behind all answers: the end of a message's key."""
    rules: dict[str, Callable[[Job, Sizes], bool]] = {
        "no_pipeline": lambda job, sizes: sizes[1] == 1,
        "in_node": lambda job, sizes: sizes[2] <= job.cluster.devices_per_node,
        "kv_heads": lambda job, sizes: job.num_kv_heads % sizes[2] == 0,
        "powers": lambda job, sizes: all(size & (size - 1) == 0 for size in sizes[:3]),
        "replicas": lambda job, sizes: sizes[0] == max(each[0] for each in fitting(job)),
    }
    for cause, allowed in rules.items():
        if all(_fastest(each, allowed) == answer for each, answer in answers):
            return cause
    if all(got in (None, _least(each)) for each, got in answers):
        return "least_memory"
    return "micro_batches" if got[:3] == best[:3] else "slower"


def _fastest(job: Job, allowed: Callable[[Job, Sizes], bool]) -> Sizes | None:
    fits = fitting(job)
    kept = [sizes for sizes in fits if allowed(job, sizes)]
    return min(kept, key=lambda sizes: fits[sizes][0], default=None)


def _least(job: Job) -> Sizes | None:
    fits = fitting(job)
    return min(fits, key=lambda sizes: fits[sizes][1], default=None)


def _why(job: Job, sizes: Sizes) -> str:
    if min(sizes) < 1:
        return "every size is at least 1"
    try:
        job.step_s(*sizes)
    except ValueError as error:
        return str(error)
    return "it is larger than the job"


def _named(sizes: Sizes) -> str:
    return "dp={}, pp={}, tp={}, m={}".format(*sizes)


def _gb(size: int) -> str:
    return f"{size / 10**9:.4g} GB"
