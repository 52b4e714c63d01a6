"""Lab 08: the check of a training step on a mesh of dp x pp x tp, and of the hunted one.

| promise                | decided by                                                            |
| ---------------------- | --------------------------------------------------------------------- |
| own rows               | rows that each rank's pipeline was given: together every one once     |
| one sync, at the end   | messages along dp: none before the pipeline is through, S bytes in all |
| every number once      | the norm, that of the serial gradient                                 |
| the update             | gradients at the first update; weights after the last                 |
| the loss               | the serial run's, after every step, on every rank, within 1e-9        |
| nothing else travels   | bytes along pp and tp outside of the pipeline: a few numbers          |

The serial run has the whole batch on one process, in float64. A wrong norm is compared with those
that the usual mistakes give.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch

from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab08_serial import (
    FACTOR,
    Weights,
    gradient_of,
    near,
    norm_cause,
    own_part,
    rows_of,
    serial,
)
from labkit.grade.lab08_step_ranks import Case, run_steps

CLOSE = 1e-9  # relative, in float64; the order of additions is free
FEW_BYTES = 64  # outside of the pipeline, a step and axis: some numbers, no gradients

# Each line is one world. Most mistakes show in the first.
WORLDS = (
    (Case(dp=2, pp=1, tp=1, num_micro_batches=2, clip_norm=0.3, rows=4),),
    (
        Case(dp=1, pp=1, tp=2, num_micro_batches=1, clip_norm=0.3, rows=3, num_steps=1),
        Case(dp=1, pp=2, tp=1, num_micro_batches=3, clip_norm=0.3, rows=6, num_steps=1),
        Case(dp=2, pp=1, tp=1, num_micro_batches=1, clip_norm=1e3, rows=2, num_steps=1),
    ),
    (Case(dp=1, pp=1, tp=1, num_micro_batches=1, clip_norm=0.3, rows=1, seq_len=1),),
    (Case(dp=2, pp=2, tp=2, num_micro_batches=2, clip_norm=0.3, num_steps=4),),
)
TIMEOUTS_S = {1: 10.0, 2: 10.0, 8: 60.0}


def check_train_step(learner: Learner) -> Iterator[str]:
    """One step on every mesh, and several on 2 x 2 x 2."""
    judge_steps("lab08.train_step", learner)
    yield from ("rows", "sync", "norm", "update", "loss", "messages", "serial")


def check_suspect(learner: Learner) -> Iterator[str]:
    """The same promises; messages of their own."""
    judge_steps("lab08.suspect", learner)
    yield from ("numbers", "sync", "messages")


def judge_steps(key: str, learner: Learner) -> None:
    """Run all cases, the small worlds first, and judge each."""
    for cases in WORLDS:
        size = cases[0].world_size
        by_rank = learner.run(run_steps, size, cases, timeout=TIMEOUTS_S[size])
        for index, case in enumerate(cases):
            _Judge(key, case, [of_rank[index] for of_rank in by_rank]).judge()


class _Judge:
    """One case: raises at the first promise that a rank breaks."""

    def __init__(self, key: str, case: Case, seen: Sequence[dict[str, Any]]) -> None:
        self.key, self.case, self.seen = key, case, seen
        self.allowed = [serial(case, epsilon) for epsilon in (0.0, 1e-6)]
        self.norm = self.allowed[0][1][0]

    def judge(self) -> None:
        for step in range(self.case.num_steps):
            self._runs(step)
        self._sync()
        self._norm()
        self._update()
        self._loss()
        for step in range(self.case.num_steps):
            self._messages(step)
        self._after()

    def fail(self, end: str, rank: int, **told: Any) -> None:
        raise CheckFailed(f"{self.key}.{end}", rank=rank, case=self.case, **told)

    def _runs(self, step: int) -> None:
        """Each rank ran the pipeline once, over rows of its replica."""
        case, taken = self.case, {}
        each, m = case.rows // case.dp, case.num_micro_batches
        for rank, seen in enumerate(self.seen):
            runs = seen["steps"][step]["runs"]
            rows = [row for run in runs for part in run["rows"] for row in part]
            targets = [row for run in runs for part in run["targets"] for row in part]
            self._early(step, rank)
            if len(runs) != 1:
                self.fail("runs", rank, expected=1, got=len(runs))
            if rows != targets:
                self.fail("targets", rank, got=f"{rows} and {targets}")
            if sorted(rows) == list(range(case.rows)) and case.dp > 1:
                self.fail("whole_batch", rank, expected=each, got=len(rows))
            if len(rows) != each or len(set(rows)) != each or -1 in rows:
                self.fail("rows", rank, expected=each, got=f"{rows}")
            if len(runs[0]["rows"]) != m:
                self.fail("micro_batches", rank, expected=m, got=len(runs[0]["rows"]))
            if runs[0]["stale"]:
                self.fail("stale", rank, step=step + 1)
            taken[seen["place"]] = rows
        for rank, seen in enumerate(self.seen):
            replica, rows = seen["place"][0], taken[seen["place"]]
            for place, others in taken.items():
                if place[0] == replica and rows != others:
                    self.fail("replica", rank, got=f"{rows} and {others}")
                if place[0] != replica and set(rows) & set(others):
                    self.fail("same_rows", rank, got=f"{rows}")

    def _early(self, step: int, rank: int) -> None:
        """Nothing along dp before the last micro-batch is through."""
        of_step = self.seen[rank]["steps"][step]
        last = max((run["calls"][1] for run in of_step["runs"]), default=0)
        along = [
            (i < last, size) for i, (_, axis, size) in enumerate(of_step["calls"]) if axis == "dp"
        ]
        number = sum(early for early, _ in along)
        if number and self.case.num_micro_batches > 1:
            got = sum(size for _, size in along)
            self.fail("early", rank, number=number, got=got, expected=self._bytes(rank))

    def _bytes(self, rank: int) -> int:
        return sum(8 * x.numel() for x in self.seen[rank]["weights"].values())

    def _sync(self) -> None:
        """The first update's gradient points where the serial one does."""
        for rank, seen in enumerate(self.seen):
            if seen["updates"] != self.case.num_steps:
                self.fail("updates", rank, expected=self.case.num_steps, got=seen["updates"])
            if any(gradient is None for gradient in seen["applied"]):
                self.fail("no_gradient", rank)
            if self._ratio(rank, gradient_of(self.case)) is None:
                own = self._ratio(rank, gradient_of(self.case, tuple(rows_of(seen))))
                self.fail("no_sync" if own is not None else "gradient", rank)

    def _ratio(self, rank: int, gradients: Weights) -> float | None:
        """The one factor by which the applied gradient is another one; None if there is none."""
        mine = torch.cat([g.flatten() for g in self.seen[rank]["applied"]])
        theirs = torch.cat(
            [g.flatten() for g in own_part(self.case, self.seen[rank], gradients).values()]
        )
        ratio = float(mine @ theirs / (theirs @ theirs))
        return ratio if bool(((mine - ratio * theirs).abs() <= 1e-9).all()) else None

    def _norm(self) -> None:
        for rank, seen in enumerate(self.seen):
            got = seen["steps"][0]["norm"]
            if got is None:
                raise CheckFailed("run.type", expected="(loss, norm)", got="something else")
            if not near(got, self.norm, CLOSE):
                shown = {"expected": f"{self.norm:.6g}", "got": f"{got:.6g}"}
                self.fail(norm_cause(self.case, self.seen, rank, got), rank, **shown)

    def _update(self) -> None:
        """Gradients were scaled by one factor on every rank, before the update."""
        whole = gradient_of(self.case)
        factor = min(1.0, self.case.clip_norm / self.norm)
        for rank in range(len(self.seen)):
            ratio = self._ratio(rank, whole)
            if ratio is None or near(ratio, factor, FACTOR):
                continue
            shown = {"expected": f"{factor:.6g}", "got": f"{ratio:.6g}"}
            likely = {"unclipped": 1.0, "raised": self.case.clip_norm / self.norm}
            causes = [cause for cause, value in likely.items() if near(ratio, value, FACTOR)]
            self.fail(causes[0] if causes else "factor", rank, **shown)

    def _loss(self) -> None:
        expected = self.allowed[0][0][0]
        for rank, seen in enumerate(self.seen):
            got = seen["steps"][0]["loss"]
            if got is None or not near(got, expected, CLOSE):
                told = "none" if got is None else f"{got:.9g}"
                shown = {"expected": f"{expected:.9g}", "got": told}
                self.fail("loss" if got else "loss_zero", rank, **shown)

    def _messages(self, step: int) -> None:
        """One gradient along dp; a few numbers along the other axes, outside of the pipeline."""
        for rank, seen in enumerate(self.seen):
            of_step, sent = seen["steps"][step], {"dp": 0}
            start, end = of_step["runs"][0]["calls"]
            for _, axis, size in [*of_step["calls"][:start], *of_step["calls"][end:]]:
                sent[axis] = sent.get(axis, 0) + size
            for axis, got in sent.items():
                most = FEW_BYTES + (self._bytes(rank) if axis == "dp" else 0)
                if got > most:
                    self.fail("bytes", rank, axis=axis, expected=most, got=got)

    def _after(self) -> None:
        """After all steps losses, norms and this rank's weights are those of the serial run."""
        for rank, seen in enumerate(self.seen):
            got = [[each["loss"], each["norm"]] for each in seen["steps"]]
            for losses, norms, weights in self.allowed:
                expected = [list(pair) for pair in zip(losses, norms, strict=True)]
                pairs = own_part(self.case, seen, weights).items()
                if _all_near(got, expected) and all(
                    torch.allclose(seen["weights"][n], x, rtol=CLOSE, atol=CLOSE) for n, x in pairs
                ):
                    break
            else:
                losses, told = self.allowed[0][0], [each[0] or 0.0 for each in got]
                apart = [i for i, x in enumerate(losses) if not near(told[i], x, CLOSE)]
                step = apart[0] if apart else len(losses) - 1
                shown = {"expected": f"{losses[step]:.9g}", "got": f"{told[step]:.9g}"}
                self.fail("drift", rank, step=step + 1, **shown)


def _all_near(got: Sequence[Sequence[Any]], expected: Sequence[Sequence[float]]) -> bool:
    pairs = zip(chain(*got), chain(*expected), strict=True)
    return all(isinstance(x, float) and near(x, y, CLOSE) for x, y in pairs)
