"""Lab 04: what the weights should be after each step, and the likeliest mistake behind others.

The oracle is torch's AdamW in one process, on the mean over ranks of the gradients; with several
micro-batches, on the sum over them. Wrong weights are compared with what known mistakes give: a sum
for the mean, a rank's own gradients, the last micro-batch alone.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from labkit.grade.check import CheckFailed
from labkit.grade.lab04_ranks import SETTINGS, Case, draw, gradients, loss_of

CLOSE = 1e-12
Gradients = Callable[[Case, int, int, list[torch.Tensor]], list[torch.Tensor]]


def judge_weights(case: Case, seen: Sequence[dict[str, Any]], of_rank: Gradients) -> None:
    """Every rank's weights after every step are those of one process."""
    expected = serial(case, of_rank, _mean)
    for step in range(case.num_steps):
        for place, rank in enumerate(case.members):
            got, right = seen[place]["weights"][step], expected[step]
            where = {"rank": rank, "case": case, "step": step + 1}
            if got.shape != right.shape or got.dtype != right.dtype:
                kinds = [f"{x.numel()} numbers of {str(x.dtype)[6:]}" for x in (right, got)]
                raise CheckFailed("run.type", expected=kinds[0], got=kinds[1])
            if not bool(((got - right).abs() <= CLOSE).all()):
                cause = likeliest_cause(
                    case, [s["weights"] for s in seen], step, place, of_rank, right
                )
                told = {"expected": _few(right), "got": _few(got)}
                raise CheckFailed(f"lab04.zero.{cause}", **told, **where)


def likeliest_cause(
    case: Case,
    weights: Sequence[Sequence[torch.Tensor]],
    step: int,
    place: int,
    of_rank: Gradients,
    right: torch.Tensor,
) -> str:
    """The likeliest mistake behind wrong weights: the end of a message's key."""
    got = weights[place][step]
    before = torch.cat([w.reshape(-1) for w in draw(case)])
    if step > 0:
        return "state"  # the first step was right
    if torch.equal(got, before):
        return "unchanged"
    if any(not torch.equal(got, other[step]) for other in weights):
        return "apart"
    last = partial(computed, first=case.num_micro_batches - 1)
    last_only = case.num_micro_batches > 1 and _same(got, serial(case, last, _mean)[0])
    likely: dict[str, list[Callable]] = {
        "mean": [_sum],
        "local": [_own, partial(_own, by_parameter=True)],
    }
    causes = [
        cause
        for cause, combines in likely.items()
        if any(_same(got, serial(case, of_rank, combine)[0]) for combine in combines)
    ]
    wrong = (got - right).abs() > CLOSE
    ragged = len(got) % len(case.members)
    if last_only or causes:
        return "overwritten" if last_only else causes[0]
    if ragged and not wrong[: len(got) // len(case.members) * len(case.members)].any():
        return "tail"
    return "order" if _same(got.sort().values, right.sort().values) else "values"


def serial(case: Case, of_rank: Gradients, combine: Callable) -> list[torch.Tensor]:
    """The flat weights after each step of AdamW in one process."""
    parameters = [torch.nn.Parameter(w) for w in draw(case)]
    optimizer = torch.optim.AdamW(parameters, **SETTINGS)
    weights = []
    for step in range(case.num_steps):
        by_rank = [of_rank(case, step, rank, list(parameters)) for rank in case.members]
        flat = combine(
            case, torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in by_rank])
        )
        for parameter, part in zip(parameters, flat.split(case.lengths), strict=True):
            parameter.grad = part.view_as(parameter).clone()
        optimizer.step()
        weights.append(torch.cat([p.detach().reshape(-1) for p in parameters]))
    return weights


def given(case: Case, step: int, rank: int, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """A rank's gradients where no model computes them; none counts as zero."""
    rows = zip(gradients(case, step, rank), parameters, strict=True)
    return [torch.zeros_like(p) if g is None else g for g, p in rows]


def computed(
    case: Case, step: int, rank: int, parameters: list[torch.Tensor], first: int = 0
) -> list[torch.Tensor]:
    """The sum over the micro-batches from the first on."""
    micros = range(first, case.num_micro_batches)
    losses = [loss_of(parameters, draw(case, step, rank, micro)) for micro in micros]
    return list(torch.autograd.grad(torch.stack(losses).sum(), parameters))


def _mean(case: Case, by_rank: torch.Tensor) -> torch.Tensor:
    return by_rank.mean(0)


def _sum(case: Case, by_rank: torch.Tensor) -> torch.Tensor:
    return by_rank.sum(0)


def _own(case: Case, by_rank: torch.Tensor, *, by_parameter: bool = False) -> torch.Tensor:
    """Every share from the gradients of the rank that owns it."""
    size, length = by_rank.shape
    shared = case.lengths if by_parameter else [length]
    owners = torch.cat([torch.arange(n) // -(-n // size) for n in shared])
    return by_rank[owners, torch.arange(length)]


def _same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return bool(((x - y).abs() <= CLOSE).all())


def _few(x: torch.Tensor) -> str:
    numbers = [f"{value:.6g}" for value in x.flatten()[:6].tolist()]
    return f"[{', '.join(numbers)}{', …' if x.numel() > 6 else ''}]"
