"""One gradient norm over all ranks, in which every number counts once.

    norm² = sum over replicas' shards, pp stages, ep experts and tp shards of |g|²

A sum over all ranks would count a number as often as there are copies of it. So a rank counts

| parameter                             | if                                             |
| ------------------------------------- | ---------------------------------------------- |
| cut over tp                           | always: padding has gradient 0                 |
| replicated over tp, such as a gain    | it is the first rank of tp                     |
| with fewer pieces than ranks (KV)     | it is the first that holds the piece           |
| the last stage's copy of an embedding | never: the first stage's counts                |
| any, not sharded over replicas        | always, and the sum does not go over them      |
| an expert's                           | as it is cut over tp; the sum goes over ep     |

Cost: one all-reduce of 8 bytes for each axis that it goes over.
"""

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist

from labkit.comm.collectives import all_reduce
from labkit.comm.pieces import Piece
from labkit.comm.split import Split


def counted(layout: Mapping[str, Split], rank: int, world_size: int) -> set[str]:
    """The parameters that this rank of tp counts: where it is the first to hold its piece."""
    return {
        name
        for name, split in layout.items()
        if rank == 0 or split.part(rank, world_size) != split.part(rank - 1, world_size)
    }


def square_of(pieces: Iterable[Piece], device: torch.device) -> torch.Tensor:
    """Sum of the squares of some pieces' gradients, float64; there may be none."""
    square = torch.zeros((), dtype=torch.float64, device=device)
    for piece in pieces:
        if piece.parameter.grad is not None:
            square += torch.linalg.vector_norm(piece.parameter.grad).double().square()
    return square


@torch.no_grad()
def scale_gradients(pieces: Iterable[Piece], norm: torch.Tensor, clip_norm: float) -> None:
    """Scale gradients, in place, so that a norm becomes clip_norm at most."""
    scale = (clip_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    for piece in pieces:
        if piece.parameter.grad is not None:
            piece.parameter.grad.mul_(scale)


@torch.no_grad()
def sum_gradients(pieces: Iterable[Piece], group: dist.ProcessGroup) -> None:
    """Add up the gradients of some pieces over a group, in one message.

    The ranks of the group must hold the same pieces, of the same sizes.
    """
    grads = [p.parameter.grad for p in pieces if p.parameter.grad is not None]
    if not grads:
        return
    total = all_reduce(torch.cat(grads), group)
    for grad, part in zip(grads, total.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(part)
