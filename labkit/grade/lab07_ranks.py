"""What happens on the ranks while lab 07 is judged.

A rank decides nothing: it calls the learner's function and returns what came of it, with every
message that it sent. The parent, which never runs a line of the learner's, compares.

Shapes: T tokens of a rank, D width, E experts, k choices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.measure.ledger import CommLedger

WIDTH = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layer on one group.

    Args:
        told: which experts are chosen.
        members: global ranks of the group.
        tokens: how many each of them has.
        never: experts that no token chooses.
    """

    told: str
    members: tuple[int, ...]
    tokens: tuple[int, ...]
    num_experts: int
    k: int
    never: tuple[int, ...] = ()

    def __str__(self) -> str:
        ranks = f"ranks {list(self.members)}" if len(self.members) > 1 else "one rank"
        return f"{self.told}, {ranks} with {list(self.tokens)} tokens, {self.num_experts} experts"

    def own(self, place: int) -> range:
        """Numbers of the experts at this place of the group."""
        share = self.num_experts // len(self.members)
        return range(place * share, (place + 1) * share)


class Expert(nn.Module):
    """One matrix and a tanh; each number has weights of its own."""

    def __init__(self, number: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(300 + number)
        matrix = torch.randn(WIDTH, WIDTH, generator=generator).double()
        self.matrix = nn.Parameter(matrix)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """rows [R, D] to [R, D]."""
        if rows.dim() != 2 or rows.shape[1] != WIDTH:
            raise ValueError(f"an expert takes rows [R, {WIDTH}], got {list(rows.shape)}")
        return torch.tanh(rows @ self.matrix)


def data_of(case: Case, place: int) -> tuple[torch.Tensor, ...]:
    """x [T, D], indices and weights [T, k], and the gradient [T, D] of the output."""
    generator = torch.Generator().manual_seed(40 + 7 * place + case.num_experts)
    T, k, E = case.tokens[place], case.k, case.num_experts
    x, grad = (torch.randn(T, WIDTH, generator=generator).double() for _ in range(2))
    scores = torch.rand(T, E, generator=generator)
    scores[:, list(case.never)] = -1
    weights = 0.1 + torch.rand(T, k, generator=generator).double()
    return x, scores.topk(k, -1).indices, weights / weights.sum(-1, keepdim=True), grad


def groups_of(
    world: dist.ProcessGroup, every: Sequence[tuple[int, ...]], axis: str
) -> dict[tuple[int, ...], Any]:
    """A group for each of these tuples of ranks; the world where it is all of them."""
    everybody = tuple(range(dist.get_world_size()))
    return {
        members: world if members == everybody else dist.new_group(list(members), group_desc=axis)
        for members in dict.fromkeys(every)
    }


def run_moe(
    world: dist.ProcessGroup, learner: Callable, cases: Sequence[Case]
) -> list[dict[str, Any] | None]:
    """Every case on this rank; None where it is not a member."""
    groups = groups_of(world, [case.members for case in cases], "ep")
    rank = dist.get_rank()
    return [
        _with_case(_layer, learner, case, groups[case.members]) if rank in case.members else None
        for case in cases
    ]


def _layer(learner: Callable, case: Case, group: dist.ProcessGroup) -> dict[str, Any]:
    place = case.members.index(dist.get_rank())
    given = data_of(case, place)
    x, indices, weights, grad = (tensor.clone() for tensor in given)
    x.requires_grad_()
    weights.requires_grad_()
    experts = [Expert(number) for number in case.own(place)]
    with CommLedger() as forward:
        y = learner(x, indices, weights, experts, group)
    fits = isinstance(y, torch.Tensor) and y.shape == grad.shape and y.dtype == grad.dtype
    seen: dict[str, Any] = {"y": y.detach().clone() if isinstance(y, torch.Tensor) else y}
    seen["attached"] = fits and y.requires_grad
    with CommLedger() as backward:
        if seen["attached"]:
            y.backward(grad)
    again = learner(x, indices, weights, experts, group)
    changed = not all(map(torch.equal, (x, indices, weights), given[:3]))
    return seen | {
        "again": again.detach() if isinstance(again, torch.Tensor) else again,
        "x_grad": x.grad,
        "weights_grad": weights.grad,
        "expert_grads": [expert.matrix.grad for expert in experts],
        "forward": forward.ops,
        "backward": backward.ops,
        "changed": changed,
    }


def _with_case(watch: Callable, learner: Callable, case: Any, *rest: Any) -> dict[str, Any]:
    try:
        return watch(learner, case, *rest)
    except NotImplementedError:
        raise
    except Exception as error:
        error.args = (f"{error} (with {case})",)  # what the parent shows
        raise


@dataclass(frozen=True, kw_only=True)
class Layout:
    """dp x ep ranks, ep innermost."""

    members: tuple[int, ...]
    dp: int
    ep: int

    def __str__(self) -> str:
        return f"dp={self.dp}, ep={self.ep}, ranks {list(self.members)}"

    def lines(self, axis: str) -> list[tuple[int, ...]]:
        """The groups of "dp", "ep" or "both"."""
        if axis == "dp":
            return [self.members[e :: self.ep] for e in range(self.ep)]
        size = self.ep if axis == "ep" else len(self.members)
        return [self.members[i : i + size] for i in range(0, len(self.members), size)]


def run_sync(
    world: dist.ProcessGroup, learner: Callable, trials: Sequence[tuple[Layout, list[Any]]]
) -> list[dict[str, Any] | None]:
    """Every layout on this rank, with the gradients that each place has before."""
    made = [
        {
            (axis, line): dist.new_group(list(line), group_desc=axis)
            for axis in ("dp", "ep", "both")
            for line in layout.lines(axis)
        }
        for layout, _ in trials
    ]
    rank = dist.get_rank()
    seen: list[dict[str, Any] | None] = []
    for (layout, parts), groups in zip(trials, made, strict=True):
        if rank not in layout.members:
            seen.append(None)
            continue
        own = [g for (_, line), g in groups.items() if rank in line]
        seen.append(_with_case(_sync, learner, layout, parts[layout.members.index(rank)], own))
    return seen


def _sync(
    learner: Callable, layout: Layout, part: dict[str, list[torch.Tensor]], groups: list[Any]
) -> dict[str, Any]:
    kinds = {
        kind: [nn.Parameter(torch.ones_like(grad)) for grad in grads]
        for kind, grads in part.items()
    }
    twice = []
    for _ in range(2):
        for kind, grads in part.items():
            for parameter, grad in zip(kinds[kind], grads, strict=True):
                parameter.grad = grad.clone()
        with CommLedger() as ledger:
            learner(kinds["dense"], kinds["experts"], *groups)
        twice.append({kind: [p.grad for p in kinds[kind]] for kind in kinds})
    parameters = [p for of_kind in kinds.values() for p in of_kind]
    changed = not all(torch.equal(p, torch.ones_like(p)) for p in parameters)
    return {"first": twice[0], "second": twice[1], "calls": ledger.ops, "changed": changed}


def run_route(
    world: dist.ProcessGroup, learner: Callable, cases: Sequence[tuple[torch.Tensor, ...]]
) -> list[dict[str, Any]]:
    """route(logits, bias, k): what it returns, and two gradients of the logits."""
    return [_route(learner, *case) for case in cases]


def _route(
    learner: Callable, logits: torch.Tensor, bias: torch.Tensor, grad: torch.Tensor
) -> dict[str, Any]:
    given, shift = logits.clone().requires_grad_(), bias.clone().requires_grad_()
    indices, weights, loss = learner(given, shift, grad.shape[1])
    if not indices.shape == weights.shape == grad.shape:
        return {"indices": indices, "weights": weights.detach(), "changed": False}
    by_expert = torch.zeros_like(given).scatter(1, indices, weights)  # [T, E]
    gradients: list[torch.Tensor | None] = []
    for what in ((weights * grad).sum(), loss):
        given.grad, shift.grad = None, None
        if what.requires_grad:
            what.backward(retain_graph=True)
        gradients.append(given.grad)
        gradients.append(shift.grad)
    again = learner(given, shift, grad.shape[1])
    return {
        "indices": indices,
        "weights": weights.detach(),
        "by_expert": by_expert.detach(),
        "loss": loss.detach(),
        "gradients": gradients,
        "same": all(
            torch.equal(a, b) for a, b in zip(again, (indices, weights, loss), strict=True)
        ),
        "changed": not (torch.equal(given, logits) and torch.equal(shift, bias)),
    }


def run_kept(
    world: dist.ProcessGroup, learner: Callable, cases: Sequence[tuple[torch.Tensor, int, int]]
) -> list[dict[str, Any]]:
    """kept(indices, num_experts, capacity), twice."""
    seen = []
    for indices, num_experts, capacity in cases:
        given = indices.clone()
        twice = [learner(given, num_experts, capacity) for _ in range(2)]
        changed = not torch.equal(given, indices)
        seen.append({"first": twice[0], "second": twice[1], "changed": changed})
    return seen
