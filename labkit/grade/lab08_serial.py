"""Lab 08: the oracle of its training steps: the whole batch on one process, in float64.

Also the norms that the usual mistakes give. With C the sum of squares of what tp cuts, G that of
what every rank of tp holds whole, the norm's square is C + G. A sum over tp counts G tp times, one
over dp everything dp times, and a rank that asks nobody has its own share alone.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from labkit.comm.split import Split
from labkit.grade.lab08_step_ranks import Case, make_optimizer

COLUMNS = ("o_proj", "down_proj")
FACTOR = 1e-5  # torch divides by norm + 1e-6: let that pass
Weights = dict[str, torch.Tensor]


@cache
def serial(case: Case, epsilon: float = 0.0) -> tuple[list[float], list[float], Weights]:
    """Losses and norms of all steps, and the last weights."""
    model = case.model()
    optimizer, losses, norms = make_optimizer(model.parameters()), [], []
    for step in range(case.num_steps):
        optimizer.zero_grad()
        tokens, targets = case.batch(step)
        loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = math.sqrt(_square(gradients))
        for gradient in gradients:
            gradient.mul_(min(1.0, case.clip_norm / (norm + epsilon)))
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
    return losses, norms, {name: p.detach() for name, p in model.named_parameters()}


@cache
def gradient_of(case: Case, rows: tuple[int, ...] | None = None) -> Weights:
    """The gradient of the mean loss of some rows, or of all, at the first step."""
    model = case.model()
    chosen = list(range(case.rows) if rows is None else rows)
    tokens, targets = (x[chosen] for x in case.batch(0))
    cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def own_part(case: Case, seen: dict[str, Any], whole: Weights) -> Weights:
    """What one rank has of the whole model's tensors."""
    tp_rank = seen["place"][2]
    return {name: shard(name, whole[name], tp_rank, case.tp) for name in seen["weights"]}


def shard(name: str, whole: torch.Tensor, tp_rank: int, tp: int) -> torch.Tensor:
    """A rank's part of a tensor."""
    if whole.dim() < 2:
        return whole
    dim = 1 if name.split(".")[-2] in COLUMNS else 0
    return Split(dim=dim, size=whole.shape[dim], parts=tp).cut(whole, tp_rank, tp)


def norm_cause(case: Case, by_rank: Sequence[dict[str, Any]], rank: int, got: float) -> str:
    """The likeliest mistake behind the norm of the first step: the end of a message's key."""
    mine = by_rank[rank]
    squares = [_squares(case, seen, gradient_of(case)) for seen in by_rank]
    cut, gains = (sum(pair[kind] for pair in squares) / case.dp for kind in (0, 1))
    true = cut + gains / case.tp
    pairs = zip(squares, by_rank, strict=True)
    stage = [pair for pair, seen in pairs if seen["place"][1] == mine["place"][1]]
    line = [*zip(*stage, strict=True)]
    replica = gradient_of(case, tuple(rows_of(mine)))
    likely = {
        "norm_sum": [case.dp**2 * true],
        "norm_tp": [cut + gains],
        "norm_dp": [case.dp * true, case.dp * (cut + gains)],
        "norm_left_out": [cut],
        "norm_pp": [(sum(line[0]) + sum(line[1]) / case.tp) / case.dp],
        "norm_local": [sum(squares[rank]), squares[rank][0]],
        "norm_before": [_square(replica.values()), sum(_squares(case, mine, replica))],
        "norm_after": [min(true, case.clip_norm**2)],
        "norm_squared": [true**2],
        "norm_roots": [_roots(by_rank, squares, mine["place"][0]) ** 2],
    }
    for cause, values in likely.items():
        if any(near(got**2, value, FACTOR) for value in values):
            return cause
    return "norm"


def rows_of(seen: dict[str, Any], step: int = 0) -> list[int]:
    """Which rows of the batch a rank's pipeline was given."""
    runs = seen["steps"][step]["runs"]
    return [row for run in runs for part in run["rows"] for row in part]


def near(x: float, y: float, tolerance: float) -> bool:
    """Whether two numbers are one but for rounding."""
    return abs(x - y) <= tolerance * max(abs(y), 1e-12)


def _roots(
    by_rank: Sequence[dict[str, Any]], squares: Sequence[tuple[float, float]], replica: int
) -> float:
    """The norms of the ranks of one replica, added up; the first of tp has what is whole."""
    pairs = [(seen["place"], pair) for seen, pair in zip(by_rank, squares, strict=True)]
    return sum(math.sqrt(c + g * (at[2] == 0)) for at, (c, g) in pairs if at[0] == replica)


def _squares(case: Case, seen: dict[str, Any], whole: Weights) -> tuple[float, float]:
    """Sums of squares of a rank's gradients: of those that tp cuts, and of the others."""
    own, cut = own_part(case, seen, whole), set(seen["cut"])
    split = _square(g for name, g in own.items() if name in cut)
    return split, _square(g for name, g in own.items() if name not in cut)


def _square(gradients: Any) -> float:
    return float(sum(float(g.square().sum()) for g in gradients))
