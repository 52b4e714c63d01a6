"""What an optimizer sees of a model in shards: pieces of parameters.

A piece is a 1-d tensor, so an optimizer's update must be element-wise: SGD, Adam and AdamW are,
Muon and Adafactor, which look at a matrix, are not.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.collectives import all_reduce, broadcast

Options = Callable[[str, torch.Size], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """The part of one parameter that one rank owns; a parameter it owns nothing of has 0 elements.

    Args:
        name: of the whole parameter.
        shape: of the whole parameter.
        start: position of the piece in the flattened parameter.
        parameter: what the optimizer sees, 1-d.
    """

    name: str
    shape: torch.Size
    start: int
    parameter: nn.Parameter


def group_pieces(pieces: Iterable[Piece], options: Options | None) -> list[dict[str, Any]]:
    """Parameter groups of an optimizer, the same ones on every rank.

    Args:
        pieces: what the rank owns.
        options: of a parameter by its name and whole shape, such as
            lambda name, shape: {} if len(shape) > 1 else {"weight_decay": 0.0}
    """
    groups: dict[str, dict[str, Any]] = {}
    for piece in pieces:
        chosen = {} if options is None else options(piece.name, piece.shape)
        group = groups.setdefault(repr(sorted(chosen.items())), {"params": [], **chosen})
        group["params"].append(piece.parameter)
    return list(groups.values())


@torch.no_grad()
def clip_pieces(
    pieces: Sequence[Piece], clip_norm: float, group: dist.ProcessGroup
) -> torch.Tensor:
    """Scale the gradients of all ranks, in place, to a norm of at most clip_norm.

    Returns:
        The norm before, float64. Padding is in no piece. One all-reduce of 8 bytes.
    """
    grads = [p.parameter.grad for p in pieces if p.parameter.grad is not None]
    device = pieces[0].parameter.device
    square = torch.zeros((), dtype=torch.float64, device=device)
    for grad in grads:
        square += torch.linalg.vector_norm(grad).double().square()
    norm = all_reduce(square, group).sqrt()
    scale = (clip_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    for grad in grads:
        grad.mul_(scale)
    return norm


def divisor(num_tokens: int | None, group: dist.ProcessGroup, device: torch.device | None) -> float:
    """Number of ranks, or of all their tokens."""
    if num_tokens is None:
        return dist.get_world_size(group)
    total = all_reduce(torch.tensor(num_tokens, device=device), group)
    return max(1, int(total))  # without a token anywhere there is nothing to divide


def check_member(group: dist.ProcessGroup) -> None:
    """Raise ValueError on a rank that the group does not include."""
    if dist.get_rank(group) < 0:
        raise ValueError(
            f"rank {dist.get_rank()} of {dist.get_world_size()} is not in this group; "
            "build it only on the ranks of the group"
        )


def broadcast_state(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Overwrite each tensor, in place, with that of group rank 0."""
    root = dist.get_process_group_ranks(group)[0]  # a group's root is named by its global rank
    for tensor in tensors:
        tensor.detach().copy_(broadcast(tensor.detach(), group, root))
