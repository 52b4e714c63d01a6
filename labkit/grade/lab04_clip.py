"""Lab 04: the check of clipping by the global norm, over shards.

The norm of all gradients is one number: the root of a sum of squares over the shards of all ranks,
and over what every rank holds whole, counted once. Padding belongs to nobody. Decided by that
number and the scaled gradients on every rank, and by the bytes: numbers travel, no gradients.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from labkit.grade.check import CheckFailed, Learner
from labkit.grade.lab04_ranks import on_groups
from labkit.measure.ledger import CommLedger

PADDING = 30.0  # what stands behind the last number: it must not matter
MOST_BYTES = 64
TIMEOUT_S = 6.0
CLOSE = 1e-5  # torch divides by norm + 1e-6: let that pass
SHAPES = ((2, 3), (4,))  # of what every rank holds whole


@dataclass(frozen=True, kw_only=True)
class Case:
    """One clipping.

    Args:
        members: global ranks of the group.
        num_elements: of the gradient that is in shards.
        whole: every rank also holds gradients whole.
        limit: max_norm, as a part of the true norm.
        size: of the gradients; 0.0 makes them all zero, and max_norm is then `limit` itself.
    """

    members: tuple[int, ...]
    num_elements: int
    whole: bool = True
    limit: float = 0.5
    size: float = 1.0

    def __str__(self) -> str:
        told = f"ranks {list(self.members)}, {self.num_elements} numbers in shards of {self.share}"
        told += ", others whole" * self.whole
        return told + (", all zero" * (self.size == 0.0))

    @property
    def share(self) -> int:
        return -(-self.num_elements // len(self.members))

    def gradients(self) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The whole of what is sharded, and what every rank holds whole."""
        generator = torch.Generator().manual_seed(self.num_elements)
        flat = torch.randn(self.num_elements, generator=generator, dtype=torch.float64)
        others = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]
        return self.size * flat, [self.size * other for other in others] if self.whole else []

    def shard(self, place: int) -> torch.Tensor:
        """A rank's share, padding behind it."""
        padded = torch.full((self.share * len(self.members),), PADDING, dtype=torch.float64)
        padded[: self.num_elements] = self.gradients()[0]
        return padded[self.share * place : self.share * (place + 1)].clone()

    def num_own(self, place: int) -> int:
        """How many numbers of a rank's share are no padding."""
        return max(0, min(self.share, self.num_elements - self.share * place))

    def squares(self) -> tuple[list[float], float]:
        """Sums of squares: of each rank's share, and of what is whole."""
        flat, others = self.gradients()
        own = [
            float(flat[self.share * p : self.share * (p + 1)].square().sum())
            for p in range(len(self.members))
        ]
        return own, sum(float(other.square().sum()) for other in others)

    @property
    def norm(self) -> float:
        own, others = self.squares()
        return math.sqrt(sum(own) + others)

    @property
    def max_norm(self) -> float:
        return self.limit * (self.norm or 1.0)


THREE, FOUR = (0, 1, 2), (0, 1, 2, 3)
CASES = {
    3: (
        Case(members=THREE, num_elements=60, whole=False),
        Case(members=THREE, num_elements=60),
        Case(members=THREE, num_elements=61, whole=False),
        Case(members=THREE, num_elements=60, limit=2.0),
    ),
    4: (
        Case(members=FOUR, num_elements=5),  # the last rank's share is padding
        Case(members=(1, 3), num_elements=41),
        Case(members=(2,), num_elements=41),
        Case(members=FOUR, num_elements=40, size=0.0),
        Case(members=FOUR, num_elements=401, whole=False, limit=0.01),
    ),
}


def run_clip(
    world: dist.ProcessGroup, clip: Callable, cases: Sequence[Case]
) -> list[dict[str, Any] | None]:
    """clip(shard, num_elements, whole, max_norm, group) in every case; None elsewhere."""

    def run(case: Case, group: dist.ProcessGroup, rank: int) -> dict[str, Any]:
        shard, whole = case.shard(case.members.index(rank)), case.gradients()[1]
        with CommLedger() as ledger:
            norm = clip(shard, case.num_elements, whole, case.max_norm, group)
        told = float(norm) if isinstance(norm, torch.Tensor | float | int) else None
        return {"norm": told, "shard": shard, "whole": whole, "calls": ledger.ops}

    return list(on_groups(world, cases, run))


def check_clip_grad_norm(learner: Learner) -> Iterator[str]:
    """One factor on every rank, from the norm over all ranks."""
    for world_size, cases in CASES.items():
        by_rank = learner.run(run_clip, world_size, cases, timeout=TIMEOUT_S)
        for index, case in enumerate(cases):
            for place, rank in enumerate(case.members):
                seen = by_rank[rank][index]
                _judge_norm(case, place, seen["norm"])
                _judge_gradients(case, place, seen)
                sent = sum(call.bytes_sent for call in seen["calls"])
                if sent > MOST_BYTES:
                    told = {"expected": MOST_BYTES, "got": sent, "rank": rank, "case": case}
                    raise CheckFailed("lab04.clip_grad_norm.traffic", **told)
    yield from ("norm", "gradients", "untouched", "traffic")


def _judge_norm(case: Case, place: int, got: float | None) -> None:
    if got is None:
        raise CheckFailed("run.type", expected="the norm, one number", got="something else")
    if _near(got, case.norm):
        return
    own, others = case.squares()
    size, share = len(own), case.share
    pads = range(1, share * size - case.num_elements + 1)
    roots = [math.sqrt(square + others) for square in own]
    likely = {
        "padding": [math.sqrt(sum(own) + others + n * PADDING**2) for n in pads],
        "local": [roots[place], math.sqrt(own[place])],
        "counted": [math.sqrt(sum(own) + size * others)],
        "roots": [sum(roots), sum(map(math.sqrt, own)) + math.sqrt(others), sum(roots) / size],
        "left_out": [math.sqrt(sum(own))],
        "squared": [case.norm**2],
    }
    causes = [cause for cause, norms in likely.items() if any(_near(got, n) for n in norms)]
    told = {"expected": f"{case.norm:.6g}", "got": f"{got:.6g}"}
    where: dict[str, Any] = {"rank": case.members[place], "case": case}
    raise CheckFailed(f"lab04.clip_grad_norm.{causes[0] if causes else 'norm'}", **told, **where)


def _judge_gradients(case: Case, place: int, seen: dict[str, Any]) -> None:
    """The rank's own numbers and the whole gradients, scaled by one factor or left alone."""
    num_own = case.num_own(place)
    flat, others = case.gradients()
    mine = flat[case.share * place :][:num_own]
    factor = min(1.0, case.max_norm / case.norm) if case.norm else 1.0
    pairs = [(seen["shard"][:num_own], mine), *zip(seen["whole"], others, strict=True)]
    own, of_others = case.squares()
    alone = case.max_norm / (math.sqrt(own[place] + of_others) or 1.0)
    for got, before in pairs:
        if factor == 1.0 and not torch.equal(got, before):
            cause = "raised"
        elif _close(got, factor * before):
            continue
        elif torch.equal(got, before):
            cause = "not_scaled"
        else:
            cause = "own_factor" if _close(got, alone * before) else "gradients"
        told = {"expected": f"{factor:.6g}", "got": _factor(got, before)}
        where: dict[str, Any] = {"rank": case.members[place], "case": case}
        raise CheckFailed(f"lab04.clip_grad_norm.{cause}", **told, **where)


def _near(x: float, y: float) -> bool:
    return abs(x - y) <= CLOSE * max(abs(y), 1e-12)


def _close(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool(((x - y).abs() <= CLOSE * y.abs()).all())


def _factor(got: torch.Tensor, before: torch.Tensor) -> str:
    factors = (got / before).flatten()
    low, high = float(factors.min()), float(factors.max())
    return f"{low:.6g}" if _near(low, high) else f"{low:.6g} to {high:.6g}"
