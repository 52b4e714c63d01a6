"""A flat buffer cut into equal shards, one a rank, and the exchanges that keep it.

    parameters   a a a | b | c c | d d d d d d d        flat, in order, padded to N shards of s
    4 shards     a a a b | c c d d | d d d d | d 0 0 0

A shard holds pieces of parameters: of `d` above three ranks hold some, of `a` only the first. Each
piece stays a tensor of its own, because optimizers skip a parameter that has no gradient and treat
matrices and vectors differently.

| exchange       | a rank sends                         | bytes, S = N s elements |
| -------------- | ------------------------------------ | ----------------------- |
| reduce-scatter | shard r of its buffer to each rank r | (N-1)/N S               |
| all-gather     | its own shard to each rank           | (N-1)/N S               |

The bytes are those of a ring. All messages leave at once, so that a rank need not look after them
while it computes, and the owner adds in the order of the ranks, in the precision that it asks for.
gloo's own reduce-scatter is an all-reduce inside: twice these bytes on the wire.

A parameter that no rank used has no gradient. To tell it from a zero gradient costs no byte: the
first element of each of its pieces is sent as -0.0, that of a used one never is, and in IEEE 754
only a sum of nothing but -0.0 is -0.0.
Source: ZeRO (arXiv 1910.02054), section 5; PyTorch FSDP (arXiv 2304.11277), section 4.

Shapes: N ranks, s elements of a shard.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.distributed as dist
from torch import nn

from labkit.comm.pieces import Piece


@dataclass(frozen=True, kw_only=True)
class FlatLayout:
    """Where each parameter lies in the flat buffer, and each piece in its shard."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    num_shards: int

    @cached_property
    def sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes]

    @cached_property
    def shard_numel(self) -> int:
        return -(-sum(self.sizes) // self.num_shards)

    @property
    def padded_numel(self) -> int:
        return self.num_shards * self.shard_numel

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parameters in a flat buffer [N s]: views in their shapes."""
        parts = flat[: sum(self.sizes)].split(self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def spans(self, rank: int) -> list[tuple[int, int, int]]:
        """Of every parameter: start in it, place in the shard of `rank`, number of elements."""
        first, found, begin = rank * self.shard_numel, [], 0
        for size in self.sizes:
            low = max(begin, first)
            high = max(low, min(begin + size, first + self.shard_numel))
            numel = high - low
            found.append((low - begin, low - first, numel) if numel else (0, 0, 0))
            begin += size
        return found

    def pieces(self, shard: torch.Tensor, rank: int) -> list[Piece]:
        """The parameters that an optimizer sees: views into a shard [s]."""
        return [
            Piece(
                name=name,
                shape=shape,
                start=start,
                parameter=nn.Parameter(shard[offset : offset + numel]),
            )
            for name, shape, (start, offset, numel) in zip(
                self.names, self.shapes, self.spans(rank), strict=True
            )
        ]

    @cached_property
    def firsts(self) -> torch.Tensor:
        """Positions in [N s] at which a piece begins, and whose it is [2, number of pieces]."""
        found = [
            (rank * self.shard_numel + offset, which)
            for rank in range(self.num_shards)
            for which, (_, offset, numel) in enumerate(self.spans(rank))
            if numel
        ]
        return torch.tensor(found, dtype=torch.long).view(-1, 2).t().contiguous()


def flat_gradient(layout: FlatLayout, parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """The gradients in one new buffer [N s]; where one is missing, zeros that say so."""
    flat = parameters[0].new_empty(layout.padded_numel)
    flat[sum(layout.sizes) :] = 0
    for view, parameter in zip(layout.views(flat), parameters, strict=True):
        if parameter.grad is None:
            view.zero_()
        else:
            view.copy_(parameter.grad)
    places, which = layout.firsts.to(flat.device)
    used = torch.tensor([p.grad is not None for p in parameters], device=flat.device)
    marks = (flat[places] + 0.0).where(used[which], -0.0)  # -0.0 + 0.0 is 0.0
    flat[places] = marks.to(flat.dtype)
    return flat


@torch.no_grad()
def set_gradients(
    layout: FlatLayout, pieces: Sequence[Piece], gradient: torch.Tensor, rank: int
) -> None:
    """Give each piece its part of a shard's gradient [s], or none where no rank had one."""
    spans = layout.spans(rank)
    begins = torch.tensor([offset for _, offset, numel in spans if numel], dtype=torch.long)
    marks = gradient[begins.to(gradient.device)]
    missing = iter(((marks == 0) & marks.signbit()).tolist())
    for piece, (_, offset, numel) in zip(pieces, spans, strict=True):
        if numel and not next(missing):
            part, old = gradient[offset : offset + numel], piece.parameter.grad
            piece.parameter.grad = part if old is None else old + part


def start_all_gather(flat: torch.Tensor, group: dist.ProcessGroup) -> list[dist.Work]:
    """Send the own shard of flat [N s] to all, and receive theirs in its other shards.

    The buffer is complete when all works have been waited for, and must live until then.
    """
    shards = flat.view(dist.get_world_size(group), -1).unbind()  # N of [s]
    mine = shards[dist.get_rank(group)]
    operations = []
    for place, peer in _others(group):
        operations.append(dist.P2POp(dist.irecv, shards[place], peer, group))
        operations.append(dist.P2POp(dist.isend, mine, peer, group))
    return dist.batch_isend_irecv(operations) if operations and flat.numel() else []


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """A reduce-scatter on its way: what each rank gave to this one's shard, in rank order."""

    parts: list[torch.Tensor]
    sent: torch.Tensor
    works: list[dist.Work]


def start_reduce_scatter(flat: torch.Tensor, group: dist.ProcessGroup) -> Reduction:
    """Begin to sum flat [N s] over the group; it belongs to the exchange until `finish`."""
    shards = flat.view(dist.get_world_size(group), -1).unbind()  # N of [s]
    parts = list(shards)
    operations = []
    for place, peer in _others(group):
        parts[place] = torch.empty_like(shards[place])
        operations.append(dist.P2POp(dist.irecv, parts[place], peer, group))
        operations.append(dist.P2POp(dist.isend, shards[place], peer, group))
    works = dist.batch_isend_irecv(operations) if operations and flat.numel() else []
    return Reduction(parts=parts, sent=flat, works=works)


def finish_reduce_scatter(reduction: Reduction, dtype: torch.dtype) -> torch.Tensor:
    """Wait, and return this rank's shard of the sum [s], added up in dtype."""
    for work in reduction.works:
        work.wait()
    total = reduction.parts[0].to(dtype, copy=True)
    for part in reduction.parts[1:]:
        total.add_(part)
    return total


def _others(group: dist.ProcessGroup) -> list[tuple[int, int]]:
    """(group rank, global rank) of the others; each rank begins with the one after itself."""
    ranks, mine = dist.get_process_group_ranks(group), dist.get_rank(group)
    places = [(mine + step) % len(ranks) for step in range(1, len(ranks))]
    return [(place, ranks[place]) for place in places]
