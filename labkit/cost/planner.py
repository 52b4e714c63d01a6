"""Every layout of a model on N devices: which fit, which is fastest, and why the others are not.

For each layout of the search space (candidates.py) the fullest pipeline rank's bytes
(fullest_rank.py) are held against the memory of a device; of those that fit, the predicted seconds
of a step (step_time.py) decide. Nothing is sampled: the answer covers the whole product. It is
quick because sizes that do not divide are refused a block at a time, states and activations are
computed once for all that share them, and of layouts that differ only in what a rank keeps (ZeRO,
recomputation, sequence parallelism) those are not priced that another one is sure to beat.

A device's memory is not all a program's. The formulas leave out the CUDA context, buffers of the
communication library, workspaces of the products and fragmentation, so a layout may fill 0.9 of it:
the course's assumption, to be changed by whoever has measured.

Seconds are predictions, as good as step_time.py's residuals on published runs. Activations are
those of the course's own layer, which keeps more than one whose norms and activation functions are
fused: a layout that is refused for them here may have run elsewhere.
"""

from dataclasses import replace
from operator import add, attrgetter, itemgetter
from typing import Any

from labkit.cost.architecture import Architecture
from labkit.cost.candidates import (
    Job,
    Kept,
    as_quick,
    axes_refusal,
    kept_choices,
    schedules,
    why_not,
    worlds,
    zero_choices,
)
from labkit.cost.cluster import Cluster
from labkit.cost.fullest_rank import FullestRank, Held
from labkit.cost.layout import Layout
from labkit.cost.memory import MIXED, Recipe, TrainingMemory
from labkit.cost.ranking import Candidate, Needless, Ranking
from labkit.cost.step_time import step_time

__all__ = ["USABLE", "Candidate", "Ranking", "answer", "best_plan", "plan"]

USABLE = 0.9


def plan(
    architecture: Architecture,
    *,
    num_devices: int,
    cluster: Cluster,
    seq_len: int,
    batch_tokens: float,
    recipe: Recipe = MIXED,
    usable: float = USABLE,
) -> Ranking:
    """All layouts, ranked by the predicted seconds of a step.

    Args:
        batch_tokens: in a step; what is over a whole number of sequences is left out.
        recipe: bytes a parameter.
        usable: share of a device's memory that a layout may fill.

    Raises:
        ValueError: for a batch of less than a sequence, devices that do not fill their nodes, a
            share outside (0, 1], and numbers for which no layout divides.
    """
    _check(architecture, recipe)
    _check_numbers(num_devices, cluster, seq_len, batch_tokens, usable)
    job = Job(architecture=architecture, seq_len=seq_len, batch_size=int(batch_tokens // seq_len))
    search = _Search(job, cluster, recipe, int(usable * cluster.device.memory_bytes))
    for axes in worlds(num_devices):
        search.look_at(axes)
    if not search.fitting and not search.too_large:
        each = "; ".join(sorted({each.refusal for each in search.refused})[:3])
        raise ValueError(f"no layout of {num_devices} devices divides: {each}")
    return Ranking(
        job=job,
        num_devices=num_devices,
        budget_bytes=search.budget_bytes,
        fitting=tuple(sorted(search.fitting, key=_order)),
        unpriced=tuple(search.needless),
        too_large=tuple(sorted(search.too_large, key=attrgetter("needed_bytes"))),
        refused=tuple(search.refused),
    )


def best_plan(architecture: Architecture, **question: Any) -> Candidate:
    """The fastest layout that fits; arguments are those of `plan`.

    Raises:
        ValueError: as `plan` does; and where none fits, with the nearest miss.
    """
    ranking = plan(architecture, **question)
    if ranking.best is None:
        counted, nearest = f"{ranking.num_layouts:,}", ranking.too_large[0].reason
        raise ValueError(f"none of {counted} layouts fits; the nearest {nearest}")
    return ranking.best


def answer(
    job: Job, layout: Layout, *, cluster: Cluster, recipe: Recipe = MIXED, usable: float = USABLE
) -> Candidate:
    """Whether one layout is feasible, and why."""
    _check(job.architecture, recipe)
    budget_bytes = int(usable * cluster.device.memory_bytes)
    if refusal := why_not(job, layout):
        return Candidate(layout=layout, budget_bytes=budget_bytes, refusal=refusal)
    search = _Search(job, cluster, recipe, budget_bytes)
    memory, working = search.rank.memory(layout)
    step = None
    if memory.total_bytes + working <= budget_bytes:
        step = step_time(job.architecture, layout, cluster, job.seq_len)
    return search.candidate(layout, (memory, working), step=step)


class _Search:
    """Goes through the layouts on one set of axes after the other."""

    def __init__(self, job: Job, cluster: Cluster, recipe: Recipe, budget_bytes: int) -> None:
        self.job = job
        self.cluster = cluster
        self.budget_bytes = budget_bytes
        self.rank = FullestRank(job.architecture, seq_len=job.seq_len, recipe=recipe)
        self.fitting: list[Candidate] = []
        self.needless: list[Needless] = []
        self.too_large: list[Candidate] = []
        self.refused: list[Candidate] = []

    def look_at(self, axes: Layout) -> None:
        """All layouts on these five axes."""
        if refusal := axes_refusal(self.job, axes):
            refused = Candidate(layout=axes, budget_bytes=self.budget_bytes, refusal=refusal)
            self.refused.append(refused)
            return
        choices = kept_choices(self.job, axes)
        held: dict[int, dict[int, list[Held]]] = {}  # by chunks, by ZeRO, of each rank
        for size, m, v in schedules(self.job, axes):
            if v not in held:
                least = replace(axes, num_micro_batches=axes.pp, chunks=v)
                each = {zero: replace(least, zero=zero) for zero in zero_choices(axes)}
                held[v] = {zero: self.rank.states(layout) for zero, layout in each.items()}
            self._look_at_schedule(axes, (size, m, v), choices, held[v])

    def _look_at_schedule(
        self,
        axes: Layout,
        schedule: tuple[int, int, int],
        choices: list[tuple[bool, str]],
        held: dict[int, list[Held]],
    ) -> None:
        """All layouts with these micro-batches and chunks besides."""
        totals = {zero: [each.total_bytes for each in held[zero]] for zero in held}
        fitting: list[Layout] = []
        missed: list[tuple[int, Kept, Held, int]] = []
        for choice in choices:
            any_zero = _layout(axes, schedule, Kept(*choice, 0))
            activations = self.rank.activation_bytes(any_zero)
            for zero, of_ranks in totals.items():
                kept = Kept(*choice, zero)
                needed = list(map(add, of_ranks, activations))
                most = max(needed)
                place = needed.index(most)
                if most > self.budget_bytes:
                    missed.append((most, kept, held[zero][place], activations[place]))
                elif quick := next((each for each in fitting if as_quick(each, kept)), None):
                    self.needless.append(
                        Needless(quick, kept, held[zero][place], activations[place])
                    )
                else:
                    layout = _layout(axes, schedule, kept)
                    self._price(layout, held[zero][place].keeping(activations[place]))
                    fitting.append(layout)
        if missed:
            _, kept, of_rank, activation_bytes = min(missed, key=itemgetter(0))
            layout, memory = _layout(axes, schedule, kept), of_rank.keeping(activation_bytes)
            self.too_large.append(self.candidate(layout, memory, num_layouts=len(missed)))

    def _price(self, layout: Layout, memory: tuple[TrainingMemory, int]) -> None:
        step = step_time(self.job.architecture, layout, self.cluster, self.job.seq_len)
        self.fitting.append(self.candidate(layout, memory, step=step))

    def candidate(
        self, layout: Layout, memory: tuple[TrainingMemory, int], **more: Any
    ) -> Candidate:
        return Candidate(
            layout=layout,
            budget_bytes=self.budget_bytes,
            memory=memory[0],
            working_bytes=memory[1],
            **more,
        )


def _layout(axes: Layout, schedule: tuple[int, int, int], kept: Kept) -> Layout:
    return Layout(
        dp=axes.dp,
        pp=axes.pp,
        cp=axes.cp,
        ep=axes.ep,
        tp=axes.tp,
        zero=kept.zero,
        sequence_parallel=kept.sequence_parallel,
        recompute=kept.recompute,
        micro_batch_size=schedule[0],
        num_micro_batches=schedule[1],
        chunks=schedule[2],
    )


def _check(architecture: Architecture, recipe: Recipe) -> None:
    if architecture.kv_latent_size:
        latent = f"a latent of {architecture.kv_latent_size} numbers for keys and values"
        raise ValueError(f"{latent}: no layout of latent attention is counted yet")
    if recipe.name == "fp32":
        raise ValueError("step times are those of products in 16 bits; recipe fp32 has none")


def _check_numbers(
    num_devices: int, cluster: Cluster, seq_len: int, batch_tokens: float, usable: float
) -> None:
    if num_devices < 1 or seq_len < 1:
        raise ValueError(
            f"{num_devices} devices and {seq_len} tokens a sequence: at least 1 of each"
        )
    if batch_tokens < seq_len:
        raise ValueError(f"batch of {batch_tokens:g} tokens is less than one sequence of {seq_len}")
    if not 0 < usable <= 1:
        raise ValueError(f"usable share of memory is {usable}, it lies above 0 and up to 1")
    node = cluster.devices_per_node
    if num_devices > node and num_devices % node:
        raise ValueError(f"{num_devices} devices do not fill nodes of {node}; take whole nodes")


def _order(candidate: Candidate) -> tuple:
    """The fastest first; of equals the one that holds less, then the one of fewer cuts."""
    assert candidate.step is not None, "only what fits is ordered"
    each = candidate.layout
    cuts = (each.tp, each.pp, each.cp, each.ep, each.zero, each.recompute, each.chunks)
    return candidate.step.total_s, candidate.needed_bytes, *cuts, each.num_micro_batches
