"""Lab 05: the serial layer, which is the oracle, and what each rank should have of it.

One process computes output and gradients of the whole layer. A rank should have its slice of each:
piece p of ceil(size / pieces) along a dimension, the last piece filled up with zeros, where
p = place * pieces // tp. There are fewer pieces than ranks where neighbours hold the same KV heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from labkit.grade.lab05_ranks import Part, Trial
from labkit.grade.lab05_seen import Traffic, Want


@dataclass(frozen=True, kw_only=True)
class Whole:
    """The whole layer of one group: y = function(x, *tensors).

    Args:
        tensors: by the name of the parameter that holds a shard.
        dims: along which each is cut; names that are not here stay whole on every rank.
        grad: of y.
        x_dim, y_dim: along which a rank holds a slice of x and of y; None is all.
        pieces: of tensors that are cut into fewer pieces than there are ranks.
    """

    function: Callable
    x: torch.Tensor
    grad: torch.Tensor
    tensors: dict[str, torch.Tensor]
    dims: dict[str, int]
    x_dim: int | None = None
    y_dim: int | None = None
    pieces: dict[str, int] = field(default_factory=dict)
    forward: Traffic = ()
    backward: Traffic = ()


Answer = tuple[torch.Tensor, torch.Tensor | None, dict[str, torch.Tensor]]


def serial(whole: Whole) -> Answer:
    """Output, gradient of x (None for words), and gradients of the tensors, of one process."""
    names = list(whole.tensors)
    leaves = [whole.tensors[name].clone().requires_grad_() for name in names]
    x = whole.x.clone().requires_grad_(whole.x.is_floating_point())
    y = whole.function(x, *leaves)
    wanted = [x, *leaves] if x.requires_grad else leaves
    grads = list(torch.autograd.grad(y, wanted, whole.grad))
    dx = grads.pop(0) if x.requires_grad else None
    return y.detach(), dx, dict(zip(names, grads, strict=True))


def cut(x: torch.Tensor, dim: int | None, pieces: int, trial: Trial, rank: int) -> torch.Tensor:
    """The piece of a rank; all of x where it is not cut."""
    if dim is None:
        return x.clone()
    piece = -(-x.shape[dim] // pieces)
    missing = list(x.shape)
    missing[dim] = pieces * piece - x.shape[dim]
    padded = torch.cat([x, x.new_zeros(missing)], dim)
    start = trial.place(rank) * pieces // trial.tp * piece
    return padded.narrow(dim, start, piece).clone()


def on_ranks(
    wholes: Sequence[Whole],
    world_size: int,
    note: str,
    *,
    rest: tuple[int, ...] = (),
    replicas: int = 0,
    strided: bool = False,
    num_whole: int = 0,
) -> tuple[Trial, list[Want]]:
    """The trial of one layer a group, and what every rank of the world should have.

    Args:
        num_whole: tensors that the learner's class takes; None where the layer has fewer.
    """
    tp = world_size // len(wholes)
    told = f"{told_groups(world_size, tp)}, {note}"
    blank = Trial(
        world_size=world_size,
        tp=tp,
        told=told,
        parts=(),
        rest=rest,
        replicas=replicas,
        strided=strided,
    )
    answers = [serial(whole) for whole in wholes]
    parts, wants = [], []
    for rank in range(world_size):
        whole = wholes[rank % len(wholes)]
        missing = [None] * (num_whole - len(whole.tensors))
        parts.append(
            Part(
                whole=(*whole.tensors.values(), *missing),
                inputs=(cut(whole.x, whole.x_dim, tp, blank, rank),),
                grad=cut(whole.grad, whole.y_dim, tp, blank, rank),
            )
        )
        wants.append(_want(whole, answers[rank % len(wholes)], blank, rank))
    return replace(blank, parts=tuple(parts)), wants


def _want(whole: Whole, answer: Answer, trial: Trial, rank: int) -> Want:
    y, dx, grads = answer
    shards, shard_grads = (
        {
            name: cut(x, whole.dims.get(name), whole.pieces.get(name, trial.tp), trial, rank)
            for name, x in tensors.items()
        }
        for tensors in (whole.tensors, grads)
    )
    return Want(
        output=cut(y, whole.y_dim, trial.tp, trial, rank),
        input_grads=(None if dx is None else cut(dx, whole.x_dim, trial.tp, trial, rank),),
        shards=shards,
        grads=shard_grads,
        forward=whole.forward,
        backward=whole.backward,
    )


def told_groups(world_size: int, tp: int) -> str:
    """What a message says of the groups of a trial."""
    if tp == 1:
        return "tp=1: each rank alone"
    if tp == world_size:
        return f"tp={tp}: all {tp} ranks"
    return "tp=2: groups of ranks 0, 2 and 1, 3"


def draw(seed: int, *shapes: Sequence[int]) -> list[torch.Tensor]:
    """Tensors of one group, in float64; a product with one of them keeps the size of numbers."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(*s, generator=generator, dtype=torch.float64) / s[-1] ** 0.5 for s in shapes
    ]
